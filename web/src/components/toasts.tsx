// A word on what was done, in a corner; read out by screen readers, gone after a while.
import type { ReactNode } from "react";
import { watched } from "../lib/watched";
import { Icon } from "./icon";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
  hint: string | null;
}

let toasts: readonly Toast[] = [];
let next = 1;
const { tell, use } = watched();

function set(value: readonly Toast[]): void {
  toasts = value;
  tell();
}

export function say(text: string, { bad = false, hint = null }: { bad?: boolean; hint?: string | null } = {}): void {
  const toast = { id: next++, text, bad, hint };
  set([...toasts.slice(-3), toast]);
  setTimeout(() => set(toasts.filter((one) => one !== toast)), bad ? 9000 : 4000);
}

export function Toasts(): ReactNode {
  const shown = use(() => toasts);
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={`toast ${toast.bad ? "bad" : "good"}`}>
          <Icon name={toast.bad ? "warn" : "check"} />
          <div>
            {toast.text}
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
