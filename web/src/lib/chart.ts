// What a chart draws: which part of time, how high, and its lines.

/** Of one instant; null or absent: not known. */
export type Values = { readonly at: number } & Readonly<Record<string, number | null | undefined>>;

const LONGEST = 15 * 60_000;
const SHORTEST = 2 * 60_000; // a server that just began has little to show
const GAP = 20_000; // further apart, live points are not joined but carried on: nothing changed in between

interface Range {
  from: number;
  until: number;
  step: number;
}

export function edges(points: readonly Values[], now: number, range?: Range): { from: number; to: number } {
  if (range) return { from: range.from, to: Math.max(range.until, range.from + 1) };
  const width = Math.min(LONGEST, Math.max(SHORTEST, now - (points[0]?.at ?? now)));
  return { from: now - width, to: now };
}

/** A round number above all of them. */
export function top(points: readonly Values[], lines: readonly { key: string }[], log = false): number {
  const most = Math.max(...lines.flatMap((line) => points.map((point) => point[line.key] ?? 0)), 0);
  if (most <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  if (log) return most > unit ? unit * 10 : unit;
  return [1, 2, 5, 10].map((step) => step * unit).find((one) => one >= most) ?? most;
}

export function nearest(points: readonly Values[], at: number): Values | null {
  let best: Values | null = null;
  for (const point of points) if (!best || Math.abs(point.at - at) < Math.abs(best.at - at)) best = point;
  return best;
}

/** Where the step of this point ends. */
export function until(points: readonly Values[], point: Values, range?: Range): number {
  if (range) return point.at + range.step;
  return points[points.indexOf(point) + 1]?.at ?? point.at + GAP;
}

export interface Trace {
  d: string;
  from: number;
  to: number;
}

/** A line, broken where there is no value. With `now`, a point that never came was like the one before. */
export function trace(
  points: readonly Values[],
  key: string,
  now: number | null,
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
    if (value == null) {
      open = null;
      return;
    }
    mark(point.at, value);
    if (now === null) {
      // One alone would be a line of no length.
      if (points[index - 1]?.[key] == null && points[index + 1]?.[key] == null) mark(point.at + 1, value);
      return;
    }
    const next = points[index + 1];
    const carried = next ? next.at - 5000 : now;
    if (carried - point.at > (next ? GAP : 0)) mark(carried, value);
  });
  return traces;
}
