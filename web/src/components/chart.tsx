// Lines over the last quarter of an hour. Hand-drawn SVG, with a table for those who cannot see it.
import { useId, useRef, useState } from "react";
import type { ReactNode } from "react";
import type { Point } from "../api/types";
import { ago, clock, useNow } from "../lib/time";

export interface Line {
  key: keyof Point;
  label: string;
  colour: 1 | 2 | 3 | 4;
  fill?: boolean;
}

const W = 600;
const H = 140;
const LONGEST = 15 * 60_000;
const SHORTEST = 2 * 60_000; // a server that just began has little to show
const GAP = 20_000; // further apart, points are not joined but carried on: nothing changed in between

function ceiling(value: number): number {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((top) => top >= value) ?? value;
}

export function Chart({
  title,
  points,
  lines,
  show,
}: {
  title: string;
  points: readonly Point[];
  lines: readonly Line[];
  show: (value: number) => string;
}): ReactNode {
  const now = useNow();
  const frame = useRef<SVGSVGElement>(null);
  const [at, setAt] = useState<number | null>(null);
  const name = useId();
  const width = Math.min(LONGEST, Math.max(SHORTEST, now - (points[0]?.at ?? now)));
  const shown = points.filter((point) => point.at > now - width - 5000);
  const top = ceiling(Math.max(...lines.flatMap((line) => shown.map((point) => point[line.key] ?? 0)), 0));
  const x = (when: number): number => W - ((now - when) / width) * W;
  const y = (value: number): number => H - (value / top) * (H - 8);
  const held = at === null ? null : nearest(shown, now - width + at * width);
  const last = shown.at(-1);
  const reading = held ?? last;
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
      <div className="chart-box">
        <svg
          ref={frame}
          viewBox={`0 0 ${W} ${H}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title}: ${lines.map((line) => `${line.label} ${last?.[line.key] == null ? "none" : show(last[line.key]!)}`).join(", ")}; highest ${show(top)}`}
          onPointerMove={(event) => {
            const box = frame.current!.getBoundingClientRect();
            setAt((event.clientX - box.left) / box.width);
          }}
          onPointerLeave={() => setAt(null)}
        >
          {[0.5, 1].map((share) => (
            <line key={share} className="grid" x1={0} x2={W} y1={y(top * share)} y2={y(top * share)} />
          ))}
          <line className="grid" x1={0} x2={W} y1={H - 0.5} y2={H - 0.5} />
          {lines.map((line) => {
            const paths = trace(shown, line.key, now, x, y);
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
        <span className="axis-left">{held ? clock(held.at) : ago(now - width, now)}</span>
        <span className="axis-right">{held ? "" : "now"}</span>
      </div>
    </figure>
  );
}

interface Trace {
  d: string;
  from: number;
  to: number;
}

/** A line, broken where there is no value; a point that never came was like the one before. */
function trace(
  points: readonly Point[],
  key: keyof Point,
  now: number,
  x: (at: number) => number,
  y: (value: number) => number,
): Trace[] {
  const traces: Trace[] = [];
  let open: Trace | null = null;
  const mark = (at: number, value: number): void => {
    const spot = `${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    if (open) {
      open.d += `L${spot}`;
      open.to = x(at);
    } else {
      open = { d: `M${spot}`, from: x(at), to: x(at) };
      traces.push(open);
    }
  };
  points.forEach((point, index) => {
    const value = point[key];
    if (value === null) {
      open = null;
      return;
    }
    mark(point.at, value);
    const next = points[index + 1];
    const until = next ? next.at - 5000 : now;
    if (until - point.at > (next ? GAP : 0)) mark(until, value);
  });
  return traces;
}

function nearest(points: readonly Point[], at: number): Point | null {
  let best: Point | null = null;
  for (const point of points) if (!best || Math.abs(point.at - at) < Math.abs(best.at - at)) best = point;
  return best;
}
