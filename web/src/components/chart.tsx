// Lines over time. Hand-drawn SVG; what it shows is also in its label, for those who cannot see it.
import { useId, useState } from "react";
import type { MouseEvent, ReactNode } from "react";
import { edges, nearest, top as topOf, trace, until } from "../lib/chart";
import type { Values } from "../lib/chart";
import { ago, clock, minute, useNow } from "../lib/time";

export interface Line {
  key: string;
  label: string;
  colour: 1 | 2 | 3 | 4;
  fill?: boolean;
}

/** The range of a chart that does not follow the clock. */
export interface Range {
  from: number;
  until: number;
  step: number;
}

/** How far to the right, from 0 to 1. */
function placeOf({ clientX, currentTarget }: MouseEvent): number {
  const box = currentTarget.getBoundingClientRect();
  return (clientX - box.left) / box.width;
}

const HOUR_MS = 3_600_000;
const W = 600;
const H = 140;

export function Chart({
  title,
  points,
  lines,
  show,
  range,
  log = false,
  pick,
}: {
  title: string;
  points: readonly Values[];
  lines: readonly Line[];
  show: (value: number) => string;
  range?: Range; // none: what comes live, up to now
  log?: boolean; // for values of which one is a thousand times the other
  pick?: (from: number, until: number) => void; // a step was clicked
}): ReactNode {
  const now = useNow(range ? 30_000 : 1_000); // what does not follow the clock is not drawn anew each second
  const [at, setAt] = useState<number | null>(null);
  const name = useId();
  const { from, to } = edges(points, now, range);
  const shown = points.filter((point) => point.at > from - 5000 && point.at <= to);
  const top = topOf(shown, lines, log);
  const scaled = (value: number): number => (log ? Math.log1p(value) : value);
  const x = (when: number): number => W - ((to - when) / (to - from)) * W;
  const y = (value: number): number => H - (scaled(value) / scaled(top)) * (H - 8);
  const middle = log ? 10 ** Math.round(Math.log10(top) / 2) : top / 2;
  const held = at === null ? null : nearest(shown, from + at * (to - from));
  const last = shown.findLast((point) => lines.some((line) => point[line.key] != null));
  const reading = held ?? last;
  const when = (instant: number): string =>
    to - from > 12 * HOUR_MS ? minute(instant) : clock(instant).slice(0, to - from > HOUR_MS / 3 ? 5 : 8);
  return (
    <figure className="chart" aria-labelledby={name}>
      <figcaption id={name}>
        <span className="chart-title">{title}</span>
        <span className="legend">
          {lines.map((line) => {
            const value = reading?.[line.key];
            return (
              <span key={line.key} className={`series-${line.colour}`}>
                <i /> {line.label} <b>{value == null ? "–" : show(value)}</b>
              </span>
            );
          })}
        </span>
      </figcaption>
      <div className={pick ? "chart-box pickable" : "chart-box"}>
        <svg
          viewBox={`0 0 ${W} ${H}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title}: ${lines.map((line) => `${line.label} ${last?.[line.key] == null ? "none" : show(last[line.key]!)}`).join(", ")}; highest ${show(top)}`}
          onPointerMove={(event) => setAt(placeOf(event))}
          onPointerLeave={() => setAt(null)}
          onClick={(event) => {
            const clicked = nearest(shown, from + placeOf(event) * (to - from));
            if (clicked) pick?.(clicked.at, until(shown, clicked, range));
          }}
        >
          {[middle, top].map((value) => (
            <line key={value} className="grid" x1={0} x2={W} y1={y(value)} y2={y(value)} />
          ))}
          {[0.25, 0.5, 0.75].map((share) => (
            <line key={share} className="grid faint-line" x1={W * share} x2={W * share} y1={0} y2={H} />
          ))}
          <line className="grid" x1={0} x2={W} y1={H - 0.5} y2={H - 0.5} />
          {lines.map((line) => {
            const paths = trace(shown, line.key, range ? null : now, x, y);
            return (
              <g key={line.key} className={`series-${line.colour}`}>
                {line.fill &&
                  paths.map((path) => (
                    <path key={path.from} className="area" d={`${path.d}L${path.to},${H}L${path.from},${H}Z`} />
                  ))}
                {paths.map((path) => (
                  <path key={path.from} className="line" d={path.d} />
                ))}
              </g>
            );
          })}
          {held && <line className="cursor" x1={x(held.at)} x2={x(held.at)} y1={0} y2={H} />}
        </svg>
        <span className="axis-top">{show(top)}</span>
        <span className="axis-middle" style={{ top: `${(y(middle) / H) * 100}%` }}>
          {show(middle) !== show(top) && show(middle)}
        </span>
        <span className="axis-left">{range ? when(from) : ago(from, now)}</span>
        <span className="axis-center">{held ? when(held.at) : range ? when((from + to) / 2) : ""}</span>
        <span className="axis-right">{range && now - to > 90_000 ? when(to) : "now"}</span>
      </div>
    </figure>
  );
}

/** The same as a mark in a row. */
export function Sparkline({ values, label }: { values: readonly number[]; label: string }): ReactNode {
  const most = Math.max(...values, 1);
  const step = 100 / Math.max(values.length - 1, 1);
  const path = values.map((value, index) => `${(index * step).toFixed(1)},${(22 - (value / most) * 20).toFixed(1)}`);
  return (
    <svg className="sparkline series-1" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={label}>
      <path className="line" d={`M${path.join("L")}`} />
    </svg>
  );
}
