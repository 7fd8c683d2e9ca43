// A picture that may be larger than its place: zoom, fit, drag to move, and a small map of it when not all is seen.
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import type { KeyboardEvent, PointerEvent, ReactNode, RefObject } from "react";
import { Icon } from "./icon";

const LEAST = 0.25;
const MOST = 2.5;
const READABLE = 0.62; // to fit, a picture shrinks so far; then it is moved
const STEP = 1.25;
const EDGE = 24; // free around the picture

interface Size {
  w: number;
  h: number;
}

const highest = (): number => Math.min(innerHeight * 0.74, 860);

export function GraphFrame({
  size,
  label,
  box,
  map,
  children,
}: {
  size: Size;
  label: string;
  box: RefObject<HTMLDivElement | null>; // the part that scrolls
  map: ReactNode; // the picture in outlines, in its own units
  children: (scale: number) => ReactNode;
}): ReactNode {
  const [room, setRoom] = useState<Size>({ w: 0, h: 0 });
  const [zoom, setZoom] = useState<number | null>(null); // null: as it fits
  const [seen, setSeen] = useState({ x: 0, y: 0 });
  const whole = Math.min(1, (room.w - EDGE) / size.w || 1, (room.h - EDGE) / size.h || 1);
  const scale = zoom ?? Math.max(whole, READABLE);
  const before = useRef(scale);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setRoom({ w: box.current?.clientWidth ?? 0, h: highest() }));
    watcher.observe(box.current!);
    return () => watcher.disconnect();
  }, [box]);
  // What was in the middle stays there.
  useLayoutEffect(() => {
    const frame = box.current!;
    const by = scale / before.current;
    before.current = scale;
    if (by === 1) return;
    frame.scrollTo({
      left: (frame.scrollLeft + frame.clientWidth / 2) * by - frame.clientWidth / 2,
      top: (frame.scrollTop + frame.clientHeight / 2) * by - frame.clientHeight / 2,
      behavior: "instant",
    });
  }, [scale, box]);
  const to = (next: number): void => setZoom(Math.min(MOST, Math.max(LEAST, next)));
  useEffect(() => {
    const frame = box.current!;
    // Not React's: its listener may not keep the browser from zooming the whole page.
    const turned = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      to(before.current * Math.exp(-event.deltaY / 300));
    };
    frame.addEventListener("wheel", turned, { passive: false });
    return () => frame.removeEventListener("wheel", turned);
  }, [box]);
  const pressed = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") to(scale * STEP);
    else if (event.key === "-") to(scale / STEP);
    else if (event.key === "0") setZoom(whole);
    else return;
    event.preventDefault();
  };
  const hidden = size.w * scale > room.w || size.h * scale > room.h;
  return (
    <div className="graph-place">
      <div
        className={`graph-frame ${hidden ? "movable" : ""}`}
        ref={box}
        tabIndex={0}
        role="region"
        aria-label={label}
        onKeyDown={pressed}
        onPointerDown={dragged}
        onScroll={(event) => setSeen({ x: event.currentTarget.scrollLeft, y: event.currentTarget.scrollTop })}
      >
        {children(scale)}
      </div>
      <div className="graph-zoom" role="group" aria-label="Zoom">
        <button type="button" aria-label="Zoom out" title="Zoom out (-)" onClick={() => to(scale / STEP)}>
          <Icon name="minus" size={14} />
        </button>
        <button type="button" title="Show all of it (0)" onClick={() => setZoom(whole)}>
          Fit
        </button>
        <button type="button" title="Actual size" onClick={() => setZoom(1)}>
          {Math.round(scale * 100)} %
        </button>
        <button type="button" aria-label="Zoom in" title="Zoom in (+)" onClick={() => to(scale * STEP)}>
          <Icon name="plus" size={14} />
        </button>
      </div>
      {hidden && (
        <Minimap
          size={size}
          view={{ x: seen.x / scale, y: seen.y / scale, w: room.w / scale, h: room.h / scale }}
          show={(x, y) =>
            box.current!.scrollTo({ left: x * scale - room.w / 2, top: y * scale - room.h / 2, behavior: "instant" })
          }
        >
          {map}
        </Minimap>
      )}
    </div>
  );
}

/** The background is taken hold of; a node is clicked. */
function dragged(event: PointerEvent<HTMLDivElement>): void {
  const frame = event.currentTarget;
  if (event.button || event.pointerType === "touch" || (event.target as Element).closest("[data-node]")) return;
  const from = { x: event.clientX + frame.scrollLeft, y: event.clientY + frame.scrollTop };
  const end = new AbortController();
  frame.setPointerCapture(event.pointerId);
  const move = (now: globalThis.PointerEvent): void => frame.scrollTo(from.x - now.clientX, from.y - now.clientY);
  frame.addEventListener("pointermove", move, { signal: end.signal });
  for (const kind of ["pointerup", "pointercancel"])
    frame.addEventListener(kind, () => end.abort(), { signal: end.signal });
}

/** For the eye and the pointer alone: keys scroll the picture itself. */
function Minimap({
  size,
  view,
  show,
  children,
}: {
  size: Size;
  view: { x: number; y: number } & Size;
  show: (x: number, y: number) => void;
  children: ReactNode;
}): ReactNode {
  const pointed = (event: PointerEvent<SVGSVGElement>): void => {
    if (event.type === "pointermove" && !event.buttons) return;
    const place = event.currentTarget.getBoundingClientRect();
    show(((event.clientX - place.left) / place.width) * size.w, ((event.clientY - place.top) / place.height) * size.h);
  };
  return (
    <svg
      className="minimap"
      viewBox={`0 0 ${size.w} ${size.h}`}
      aria-hidden="true"
      onPointerDown={pointed}
      onPointerMove={pointed}
    >
      {children}
      <rect className="minimap-view" {...{ x: view.x, y: view.y, width: view.w, height: view.h }} />
    </svg>
  );
}
