"""Upload an export to the hub. Only the hub's own library reads the token."""

from __future__ import annotations

from pathlib import Path

from gtpo_cli.errors import ExportError, program
from gtpo_cli.hub import why_unreachable
from gtpo_cli.text import one_line


def check_push(name: str, *, public: bool) -> None:
    """Raise ExportError before the work if a push would fail: for its name, the network, the token, or a repository
    that is already public without --public."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ExportError(f"--push {name}: is not a valid model name on the hub: {error}") from error
    reason = why_unreachable()
    if reason is not None:
        raise ExportError(
            f"--push {name}: the hub cannot be reached ({reason}); export without --push, replace this machine's paths "
            f"in README.md and adapter_config.json by {name}, then on a machine with network: hf upload {name} FOLDER"
        )
    if get_token() is None:
        raise ExportError(f"--push {name}: there is no token; log in with {program('hf')} auth login, or set HF_TOKEN")
    try:
        existing = HfApi().model_info(name)
    except RepositoryNotFoundError:
        return  # it will be created
    except (HfHubHTTPError, httpx.HTTPError) as error:
        raise _refused(name, error) from error
    if not existing.private and not public:
        raise ExportError(
            f"--push {name}: is already public, so everybody would see the export; use --public if you want that, or "
            "choose another name"
        )


def push(folder: Path, name: str, *, public: bool, message: str) -> str:
    """Create the repository if it is missing, private unless `public`, upload the folder and return its address.

    Raises ExportError; the local export stays.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi()
    try:
        url = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _refused(name, error, folder) from error
    return str(url)


def _refused(name: str, error: Exception, folder: Path | None = None) -> ExportError:
    reason = one_line(str(error))
    hf = program("hf")
    retry = "" if folder is None else f" The export itself is complete in {folder}: {hf} upload {name} {folder}"
    return ExportError(
        f"--push {name}: the hub refused ({reason}); may this token write there? See {hf} auth whoami.{retry}"
    )
