"use strict";
// Each figure that carries figures of its own is drawn by uPlot, with a legend of names to press and values below it.
for (const figure of document.querySelectorAll("figure")) {
  const source = figure.querySelector("script");
  if (source) draw(figure, JSON.parse(source.textContent));
}

function draw(figure, chart) {
  const colours = getComputedStyle(document.documentElement);
  const ink = () => colours.getPropertyValue("--text");
  const quiet = () => colours.getPropertyValue("--line");
  const share = chart.unit === null;
  const short = (value, digits) => String(Number(value.toPrecision(digits)));
  const shown = value => (share ? short(100 * value, 3) + "\u00a0%" : short(value, 4));

  // What one name stands for is several series of uPlot's; `at`: heading in the legend -> which.
  const tables = [], series = [{}], bands = [];
  const add = (named, { x, columns }) => {
    tables.push([x, ...columns.map(column => column.values)]);
    for (const { name, kind } of columns) {
      named.at[name] = series.length;
      if (kind === "high") bands.push({ series: [series.length, series.length - 1], fill: named.colour + "2e" });
      series.push(styled(kind, named.colour, named.dash));
    }
  };
  for (const faint of [true, false]) { // what is faint lies below every line
    for (const named of chart.series) {
      named.at ??= {};
      for (const { x, columns } of named.parts) add(named, { x, columns: columns.filter(({ kind }) => (kind === "faint") === faint) });
    }
  }
  const heads = [...new Set(chart.series.flatMap(named => Object.keys(named.at)))];
  const level = chart.level ? series.length : null;
  if (chart.level) {
    const xs = tables.flatMap(table => table[0]);
    const [value, label] = chart.level;
    chart.series.push({ label, colour: null, dash: "4 3", at: { [heads[0]]: level } });
    tables.push([[Math.min(...xs), Math.max(...xs)], [value, value]]);
    series.push({ ...styled("line", ink, "4 3"), width: 1, class: "unpointed" });
  }
  const data = uPlot.join(tables);
  const plot = new uPlot({ ...size(), series, bands, scales: scales(), axes: axes(), cursor: cursor(),
    legend: { show: false }, hooks: { setCursor: [tell], setSeries: [tell] } }, data);

  const box = element("div", "live");
  element("b", "", box, chart.title);
  box.append(plot.root);
  const legend = element("table", "legend", element("div", "scroll", box));
  const top = element("tr", "", element("thead", "", legend));
  const place = element("th", "", top);
  for (const head of heads) element("th", "number", top, head);
  const body = element("tbody", "", legend);
  const cells = chart.series.flatMap(named => row(named));
  figure.prepend(box);
  figure.classList.add("drawn");
  tell(plot);
  new ResizeObserver(() => figure.clientWidth && plot.width !== size().width && plot.setSize(size())).observe(figure);
  for (const media of ["(prefers-color-scheme: dark)", "print"]) { // paper is white
    matchMedia(media).addEventListener("change", () => plot.redraw(false));
  }

  function size() {
    const width = Math.floor(figure.clientWidth);
    return { width, height: Math.round(Math.min(280, Math.max(190, 0.55 * width))) };
  }

  function styled(kind, stroke, dash) {
    const points = { show: false };
    if (kind === "line") return { stroke, width: 1.75, dash: dash ? dash.split(" ").map(Number) : [], points };
    if (kind === "faint") return { stroke: stroke + "55", width: 1, points };
    if (kind === "low" || kind === "high") return { points, class: "unpointed" };
    const filled = kind === "dots";
    const drawn = { show: true, size: filled ? 6 : 7, width: filled ? 0 : 1.25, fill: filled ? stroke : "transparent" };
    return { stroke, paths: () => null, points: drawn };
  }

  function scales() {
    const whole = (u, low, high) => (high > 0.2 ? [-0.02, 1.02] : [-0.02 * high, Math.max(1.02 * high, 0.01)]);
    const x = { time: false, range: (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) };
    if (chart.x === "k") Object.assign(x, { distr: 3, log: 2 });
    return { x, y: share ? { range: whole } : {} };
  }

  function axes() {
    const common = { stroke: ink, grid: { stroke: quiet, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const wide = (u, values) => 14 + 6.5 * Math.max(3, ...(values ?? []).map(value => value.length));
    const x = { ...common, size: 28, space: 48, values: (u, splits) => splits.map(split => (split % 1 ? "" : String(split))) };
    if (chart.x === "k") Object.assign(x, { splits: () => data[0], filter: (u, splits) => splits });
    const y = { ...common, size: wide, values: (u, splits) => splits.map(split => (share ? short(100 * split, 3) + "%" : short(split, 6))) };
    return [x, share ? y : { ...y, label: chart.unit, labelSize: 18, labelFont: common.font }];
  }

  function cursor() {
    const near = (u, index) => (series[index].points.show ? 24 : null); // pixels; marks are few and far between
    return { y: false, hover: { prox: near }, points: { size: 6 }, sync: chart.x === "step" ? { key: "step" } : undefined };
  }

  function row(named) {
    const line = element("tr", "", body);
    const button = element("button", "", element("th", "", line));
    button.append(swatch(named));
    element("span", "", button, named.label).title = named.label;
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const show = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(show));
      plot.batch(() => Object.values(named.at).forEach(index => plot.setSeries(index, { show })));
    });
    return heads.map(head => ({ cell: element("td", "number", line), index: named.at[head] }));
  }

  // What stands under the pointer, or the last values; "at": from another place than the others.
  function tell(u) {
    const { idx, idxs } = u.cursor;
    const at = idx ?? data[0].length - 1;
    place.textContent = `${idx === null ? "last " : ""}${chart.x} ${data[0][at]}`;
    for (const { cell, index } of cells) {
      const found = index === undefined || !u.series[index].show ? null : idx === null ? last(data[index]) : idxs[index];
      const value = index === level && chart.level ? chart.level[0] : data[index]?.[found];
      cell.textContent = found === null ? "" : value === null ? "\u2013" : shown(value);
      if (found !== null && found !== at && index !== level) element("small", "", cell, ` at ${data[0][found]}`);
    }
  }
}

function last(values) {
  return values.findLastIndex(value => value !== undefined);
}

function swatch(named) {
  const [box, line] = ["svg", "line"].map(name => document.createElementNS("http://www.w3.org/2000/svg", name));
  box.setAttribute("viewBox", "0 0 22 8");
  const drawn = { x2: 22, y1: 4, y2: 4, stroke: named.colour ?? "currentColor", "stroke-width": 2, "stroke-dasharray": named.dash };
  Object.entries(drawn).forEach(([name, value]) => line.setAttribute(name, value));
  box.append(line);
  return box;
}

function element(tag, name, parent, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  parent?.append(made);
  return made;
}
