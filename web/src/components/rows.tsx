// The rows of a list of any length: only those on screen are drawn, and more are fetched before they are reached.
import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import type { CSSProperties, ReactNode } from "react";
import { useRowKeys } from "../lib/keys";
import type { List, Row } from "../lib/list";
import { number } from "../lib/time";
import { go } from "../routes";
import { ProblemBox, Skeleton } from "./basics";

const AHEAD = 60; // rows before the end at which more are asked for

interface Props<T extends Row> {
  list: List<T>;
  label: string;
  what: readonly [string, string]; // one, and many
  kind: string; // names the grid in the style sheet
  head: ReactNode;
  at: (row: T) => string; // its page
  empty: ReactNode;
  keys?: Record<string, (row: T) => void>;
  chosen?: (row: T) => boolean;
  total?: number | undefined; // how many there are, where it is known
  columns?: string; // of the grid, on a wide screen
  children: (row: T) => ReactNode; // its cells
}

export function Rows<T extends Row>({
  list,
  label,
  what,
  kind,
  head,
  at: pageOf,
  empty,
  keys = {},
  chosen,
  total,
  columns,
  children,
}: Props<T>): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const [above, setAbove] = useState(0); // the height of what is over the rows
  const { rows, canMore, more, setOnScreen } = list;
  const virtual = useWindowVirtualizer({
    count: rows.length,
    estimateSize: () => (innerWidth < 800 ? 62 : 41),
    overscan: 12,
    getItemKey: (index) => rows[index]!.id,
    scrollMargin: above,
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    const watcher = new ResizeObserver(() => setAbove(box.current?.offsetTop ?? 0));
    watcher.observe(document.body);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => setOnScreen(items.map((item) => rows[item.index]!.id)));
  useEffect(() => {
    if (canMore && last > rows.length - AHEAD) more();
  }, [canMore, more, last, rows.length]);
  const acts = Object.entries(keys).map(([key, act]) => [key, (index: number) => act(rows[index]!)] as const);
  const ids = useMemo(() => rows.map((row) => row.id), [rows]);
  const [at] = useRowKeys(ids, (index) => go(pageOf(rows[index]!)), Object.fromEntries(acts));
  useEffect(() => {
    if (at >= 0) virtual.scrollToIndex(at, { align: "auto" });
  }, [at, virtual]);

  if (list.error && !list.loaded) return <ProblemBox error={list.error} again={list.refresh} />;
  if (!list.loaded) return <Skeleton rows={10} />;
  if (!rows.length) return empty;
  return (
    <>
      {list.fresh > 0 && (
        <button
          type="button"
          className="primary fresh"
          onClick={() => {
            scrollTo(0, 0);
            list.refresh();
          }}
        >
          {list.fresh >= 100 ? "100+" : list.fresh} new
        </button>
      )}
      <div
        className={`card flush listed ${kind}`}
        role="table"
        aria-label={label}
        aria-rowcount={list.complete ? rows.length : -1}
        style={columns ? ({ "--columns": columns } as CSSProperties) : undefined}
      >
        <div className="list-row list-head" role="row">
          {head}
        </div>
        <div ref={box} role="rowgroup" className="virtual" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const row = rows[item.index]!;
            return (
              <div
                key={row.id}
                className={`list-row ${item.index === at ? "at" : ""}`}
                role="row"
                aria-rowindex={item.index + 1}
                aria-selected={chosen?.(row)}
                style={{ transform: `translateY(${item.start - virtual.options.scrollMargin}px)` }}
              >
                {children(row)}
              </div>
            );
          })}
        </div>
      </div>
      <p className="faint small" aria-live="polite">
        {list.complete
          ? `${number(rows.length)} ${what[rows.length === 1 ? 0 : 1]}`
          : `${number(rows.length)}${total !== undefined && total > rows.length ? ` of ${number(total)}` : ""} loaded, more as you scroll`}
      </p>
    </>
  );
}

export function Cell({
  className,
  children,
  head = false,
  sort,
}: {
  className?: string;
  children?: ReactNode;
  head?: boolean;
  sort?: "ascending" | "descending" | undefined;
}): ReactNode {
  return (
    <span role={head ? "columnheader" : "cell"} className={className} aria-sort={sort}>
      {children}
    </span>
  );
}
