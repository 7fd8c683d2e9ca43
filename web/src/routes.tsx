// The URL is the state: where we are, and what the view shows, is read from the address and written there.
import type { AnchorHTMLAttributes, MouseEvent, ReactNode } from "react";
import { watched } from "./lib/watched";

const BASE = "/ui";

interface Place {
  path: string; // without the base: "/tasks/01…"
  query: URLSearchParams;
}

let here = "";
let place: Place = { path: "/", query: new URLSearchParams() };

function current(): Place {
  if (location.href !== here) {
    here = location.href;
    const path = location.pathname.slice(BASE.length).replace(/\/+$/, "");
    place = { path: path || "/", query: new URLSearchParams(location.search) };
  }
  return place;
}

const { tell, use } = watched();

/** Each place keeps how far it was scrolled; a step back goes there again. */
export function startRoutes(): void {
  history.scrollRestoration = "manual"; // the browser would scroll before the view is drawn, when a list is not that long
  addEventListener("scrollend", () => history.replaceState({ scroll: scrollY }, ""));
  addEventListener("popstate", () => {
    tell();
    scrollBack();
  });
}

export function go(to: string, { replace = false, stay = false } = {}): void {
  if (BASE + to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", BASE + to);
  if (!replace && !stay) scrollTo(0, 0);
  tell();
}

const PATIENCE_MS = 3_000;

/** Back where the page was, as soon as it is long enough again; not once somebody scrolls. */
function scrollBack(): void {
  const wanted = (history.state as { scroll?: number } | null)?.scroll ?? 0;
  const ends = performance.now() + PATIENCE_MS;
  const moved = new AbortController();
  for (const kind of ["wheel", "keydown", "pointerdown", "touchstart"])
    addEventListener(kind, () => moved.abort(), { signal: moved.signal, once: true });
  const step = (): void => {
    if (moved.signal.aborted) return;
    scrollTo(0, wanted);
    if (Math.abs(scrollY - wanted) > 1 && performance.now() < ends) requestAnimationFrame(step);
    else moved.abort();
  };
  requestAnimationFrame(step);
}

export function usePlace(): Place {
  return use(current);
}

/** One word of the view's state. Setting it to the fallback takes it out of the address. */
export function useParam(name: string, fallback = ""): [string, (value: string) => void] {
  const { query } = usePlace();
  return [query.get(name) ?? fallback, (value) => setParams({ [name]: value === fallback ? "" : value })];
}

/** A step back leads to what was set before, unless it is to `replace` that: not to each letter that was typed. */
export function setParams(values: Record<string, string>, { replace = false } = {}): void {
  const { path, query } = current();
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(values)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  go(to(path, next), { replace, stay: true });
}

export function to(path: string, query: URLSearchParams | Record<string, string> = {}): string {
  const text = new URLSearchParams(query).toString();
  return text ? `${path}?${text}` : path;
}

export function href(path: string): string {
  return BASE + path;
}

/** Parameters of a path like /tasks/:id, or null if it is another one. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const want = pattern.split("/");
  const have = path.split("/");
  if (want.length !== have.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of want.entries()) {
    const value = have[index] ?? "";
    if (part.startsWith(":")) {
      try {
        found[part.slice(1)] = decodeURIComponent(value);
      } catch {
        return null;
      }
    } else if (part !== value) return null;
  }
  return found;
}

interface LinkProps extends Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href"> {
  to: string;
  children: ReactNode;
}

export function Link({ to: where, children, onClick, ...rest }: LinkProps): ReactNode {
  const follow = (event: MouseEvent<HTMLAnchorElement>): void => {
    onClick?.(event);
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
      return;
    event.preventDefault();
    go(where);
  };
  return (
    <a {...rest} href={href(where)} onClick={follow}>
      {children}
    </a>
  );
}
