// What this browser remembers of its user: the theme, the name that goes with approvals and pauses, retries under way
// and drafts of flows.
import { watched } from "./watched";

export type Theme = "system" | "light" | "dark";

const { tell, use } = watched();
const unkept = new Map<string, string>(); // for a browser that keeps nothing, or no more

function read(key: string): string {
  const typed = unkept.get(key); // newer than what is kept: a text that did not fit must not fall back to the one before
  if (typed !== undefined) return typed;
  try {
    return localStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

function keep(key: string, value: string): void {
  try {
    if (value) localStorage.setItem(key, value);
    else localStorage.removeItem(key);
    unkept.delete(key);
  } catch {
    unkept.set(key, value);
  }
  tell();
}

function useKept(key: string): string {
  return use(() => read(key));
}

export function useTheme(): [Theme, (theme: Theme) => void] {
  const found = useKept("onward.theme");
  return [
    found === "light" || found === "dark" ? found : "system",
    (chosen) => {
      if (chosen === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = chosen;
      keep("onward.theme", chosen);
    },
  ];
}

/** A text that was not published yet, and the version that it began with. */
export interface Draft {
  base: number;
  text: string;
}

export function useDraft(flow: string): [Draft | null, (draft: Draft | null) => void] {
  const key = `onward.draft.${flow}`;
  const found = useKept(key);
  return [found ? (JSON.parse(found) as Draft) : null, (draft) => keep(key, draft ? JSON.stringify(draft) : "")];
}

/** A search of tasks, by name. */
export interface View {
  name: string;
  q: string;
}

export function useViews(): [readonly View[], (views: readonly View[]) => void] {
  const found = useKept("onward.views");
  return [found ? (JSON.parse(found) as View[]) : [], (views) => keep("onward.views", JSON.stringify(views))];
}

/** Columns of the list of tasks that are left out or added; empty: as they are. */
export function useColumns(): [readonly string[] | null, (columns: readonly string[]) => void] {
  const found = useKept("onward.columns");
  return [found ? (JSON.parse(found) as string[]) : null, (columns) => keep("onward.columns", JSON.stringify(columns))];
}

/** A retry at a rate: how many, and between which instants they start. */
export interface Paced {
  what: string;
  count: number;
  from: number;
  until: number;
}

/** Those that this browser started, also before a reload. */
export function usePaced(): [readonly Paced[], (paced: readonly Paced[]) => void] {
  const found = useKept("onward.paced");
  return [found ? (JSON.parse(found) as Paced[]) : [], (paced) => keep("onward.paced", JSON.stringify(paced))];
}

export function useIdentity(): [string, (name: string) => void] {
  return [useKept("onward.by"), (name) => keep("onward.by", name)];
}
