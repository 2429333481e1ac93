"""Upload an export to the hub. The token is read by the hub's own library and goes nowhere else."""

from __future__ import annotations

from pathlib import Path

from gtpo_cli.errors import ExportError, program
from gtpo_cli.hub import why_unreachable
from gtpo_cli.text import one_line


def check_push(name: str, *, public: bool) -> None:
    """Raise ExportError where a push would fail for a reason that is known before the work: the name, the network, the
    token, a repository that is public already though nobody asked for that."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ExportError(f"--push {name}: is no name of a model on the hub: {error}") from error
    reason = why_unreachable()
    if reason is not None:
        raise ExportError(
            f"--push {name}: the hub cannot be reached ({reason}); export without it, put {name} in the place of this "
            "machine's paths in its README.md and adapter_config.json, then on a machine with network: "
            f"hf upload {name} FOLDER"
        )
    if get_token() is None:
        raise ExportError(f"--push {name}: there is no token; log in with {program('hf')} auth login, or set HF_TOKEN")
    try:
        there = HfApi().model_info(name)
    except RepositoryNotFoundError:
        return  # it will be made
    except (HfHubHTTPError, httpx.HTTPError) as error:
        raise _refused(name, error) from error
    if not there.private and not public:
        raise ExportError(
            f"--push {name}: is public already, so everybody would see the export; say --public if that is meant, or "
            "choose another name"
        )


def push(folder: Path, name: str, *, public: bool, message: str) -> str:
    """Make the repository where it is missing, private unless `public`, and upload the folder. Returns its address.

    Raises ExportError; the export stays.
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
    said = one_line(str(error))
    hf = program("hf")
    again = "" if folder is None else f" The export itself is whole, in {folder}: {hf} upload {name} {folder}"
    return ExportError(
        f"--push {name}: the hub refused ({said}); may this token write there? See {hf} auth whoami.{again}"
    )
