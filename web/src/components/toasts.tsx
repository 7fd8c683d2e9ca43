// A word on what was done, in a corner; read out by screen readers, gone after a while.
import { useEffect, useId } from "react";
import type { ReactNode } from "react";
import { watched } from "../lib/watched";
import { Link } from "../routes";
import { Icon } from "./icon";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
  hint: string | null;
  to: string | null; // where to see what came of it
}

let toasts: readonly Toast[] = [];
let next = 1;
const { tell, use } = watched();

function set(value: readonly Toast[]): void {
  toasts = value;
  tell();
}

export function say(text: string, more: Partial<Pick<Toast, "bad" | "hint" | "to">> = {}): void {
  const { bad = false, hint = null, to = null } = more;
  const toast = { id: next++, text, bad, hint, to };
  set([...toasts.slice(-3), toast]);
  setTimeout(() => set(toasts.filter((one) => one !== toast)), bad ? 9000 : 4000);
}

let places: readonly string[] = [];

/** In the page, and in each open dialog: what is behind a dialog can be neither clicked nor read out. The newest shows them. */
export function Toasts(): ReactNode {
  const id = useId();
  const here = use(() => places.at(-1) === id);
  const all = use(() => toasts);
  useEffect(() => {
    places = [...places, id];
    tell();
    return () => {
      places = places.filter((one) => one !== id);
      tell();
    };
  }, [id]);
  const shown = here ? all : [];
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={`toast ${toast.bad ? "bad" : "good"}`}>
          <Icon name={toast.bad ? "warn" : "check"} />
          <div>
            {toast.text} {toast.to && <Link to={toast.to}>Show</Link>}
            {toast.hint && <div className="faint small">{toast.hint}</div>}
          </div>
          <button className="plain" aria-label="Dismiss" onClick={() => set(toasts.filter((one) => one !== toast))}>
            <Icon name="cross" size={12} />
          </button>
        </div>
      ))}
    </div>
  );
}
