// Drawn for this page: sixteen by sixteen, one stroke, the colour of the text around them.
import type { ReactNode } from "react";

const DRAWN = {
  chart: "M2 13h12M4 10V7M8 10V3M12 10V5",
  list: "M5 4h9M5 8h9M5 12h9M2 4h.01M2 8h.01M2 12h.01",
  cpu: "M4.5 4.5h7v7h-7zM6 2v2M10 2v2M6 12v2M10 12v2M2 6h2M2 10h2M12 6h2M12 10h2",
  layers: "M8 2l6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3",
  hand: "M5 8V4a1 1 0 012 0v3V3a1 1 0 012 0v4V4a1 1 0 012 0v5a4.5 4.5 0 01-8 2.8L2 9.5a1 1 0 011.6-1.2L5 9.5",
  skull: "M4 10.5A5 5 0 118 13a5 5 0 01-1-.1V14M4 10.5V12h1.5M9 14v-1M6 7.5h.01M10 7.5h.01M12 10.5V12h-1.5V14",
  flask: "M6 2h4M7 2v4l-4 7h10L9 6V2M5 10h6",
  gear: "M8 5.8a2.2 2.2 0 100 4.4 2.2 2.2 0 000-4.4zM8 2v1.5M8 12.5V14M2 8h1.5M12.5 8H14M3.8 3.8l1 1M11.2 11.2l1 1M12.2 3.8l-1 1M4.8 11.2l-1 1",
  gauge: "M3.5 12.5a5.5 5.5 0 119 0M8 9.5L10.500 6",
  clock: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 5v3l2 1.5",
  dots: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  redo: "M13 8a5 5 0 11-1.5-3.5M13 2.5V5h-2.5",
  play: "M5 3.5l7 4.5-7 4.5z",
  pause: "M5.5 4v8M10.5 4v8",
  stop: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM4.2 4.2l7.6 7.6",
  check: "M3 8.5l3.5 3.5L13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.5a4.5 4.5 0 100 9 4.5 4.5 0 000-9zM10.5 10.5L14 14",
  menu: "M2 4h12M2 8h12M2 12h12",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  sun: "M8 5a3 3 0 100 6 3 3 0 000-6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7",
  moon: "M13 9.5A5.5 5.5 0 116.5 3a4.5 4.5 0 006.5 6.5z",
  screen: "M2 3h12v8H2zM6 14h4M8 11v3",
  right: "M6 3.5L10.5 8 6 12.5",
  left: "M10 3.5L5.5 8l4.5 4.5",
  people:
    "M6 3a2.2 2.2 0 100 4.4A2.2 2.2 0 006 3zM2 13c0-2.500 1.800-4 4-4s4 1.500 4 4M10.500 3.300a2.200 2.200 0 010 4M11.500 9.200c1.600.400 2.500 1.800 2.500 3.800",
  bell: "M4 11V7.500a4 4 0 018 0V11l1.200 1.500H2.800zM6.800 14h2.400",
  down: "M3.5 6L8 10.5 12.5 6",
  warn: "M8 2.5l6 11H2zM8 7v3M8 12h.01",
  bolt: "M9 1.5L3.5 9H8l-1 5.5L12.5 7H8z",
  graph: "M3 3h4v3H3zM9 10h4v3H9zM5 6v5.5h4",
  calendar: "M2.5 4h11v9.5h-11zM2.5 7h11M5.5 2v3M10.5 2v3",
  chat: "M2.5 3h11v8H7l-3 2.5V11H2.5z",
  book: "M3 2.500h8.500a1.500 1.500 0 011.500 1.500v9.500H4.500A1.500 1.500 0 013 12zM3 12a1.500 1.500 0 011.500-1.500H13M6 5.500h4",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  key: "M5.500 7.500a2.700 2.700 0 100 5.400 2.700 2.700 0 000-5.400zM7.500 8.500L13.500 2.500M11 5l2 2",
  link: "M6.5 9.5l3-3M7 5l1.5-1.5a2.5 2.5 0 013.5 3.5L10.5 8.5M9 11l-1.5 1.5A2.5 2.5 0 014 9l1.500-1.5",
} as const;

export type IconName = keyof typeof DRAWN;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }): ReactNode {
  return (
    <svg className="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={DRAWN[name]} />
    </svg>
  );
}
