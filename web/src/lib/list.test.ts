import { expect, test } from "vitest";
import { older, rowsOf, withFound, withHead } from "./list";

interface Item {
  id: string;
  created_at: number;
  state?: string;
}

const items = (...times: number[]): Item[] => times.map((at) => ({ id: `t${at}`, created_at: at }));
const pages = (...parts: Item[][]) => ({
  pages: parts.map((part, index) => ({ items: part, next: index < parts.length - 1 ? `c${index}` : "end" })),
  pageParams: parts.map((_, index) => (index ? `c${index - 1}` : null)),
});
const ids = (list: ReturnType<typeof pages>): string[] => rowsOf(list).map((row) => row.id);

test("a row on two pages is shown once, at its first place", () => {
  expect(ids(pages(items(9, 8), items(8, 7)))).toEqual(["t9", "t8", "t7"]);
});

test("new rows come first, and a row that left the head is gone", () => {
  const list = withHead(pages(items(8, 7, 6), items(5, 4)), { items: items(9, 8, 6), next: "h" }, older);
  expect(rowsOf(list).map((row) => row.id)).toEqual(["t9", "t8", "t6", "t5", "t4"]);
  expect(list.pages.at(-1)!.next).toBe("end");
});

test("a head that shares no row replaces the list: there is a gap between them", () => {
  const list = withHead(pages(items(3, 2)), { items: items(9, 8), next: "h" }, older);
  expect(list).toEqual({ pages: [{ items: items(9, 8), next: "h" }], pageParams: [null] });
});

test("a head that is the whole list replaces it", () => {
  const list = withHead(pages(items(3, 2)), { items: items(3), next: null }, older);
  expect(ids(list as ReturnType<typeof pages>)).toEqual(["t3"]);
});

test("without an order of its own a list loses no row to its head", () => {
  const list = withHead(pages(items(3, 7, 2)), { items: items(2, 3), next: "h" }, undefined);
  expect(rowsOf(list).map((row) => row.id)).toEqual(["t2", "t3", "t7"]);
});

test("rows looked up take their places, and those not found are gone", () => {
  const changed = { id: "t8", created_at: 8, state: "running" };
  const list = withFound(pages(items(9, 8, 7)), ["t8", "t7"], [changed]);
  expect(rowsOf(list)).toEqual([items(9)[0], changed]);
});
