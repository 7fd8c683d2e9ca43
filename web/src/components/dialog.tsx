// The browser's own dialog: it keeps the focus inside and Escape closes it.
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import { Icon } from "./icon";
import { Toasts } from "./toasts";

const SETTLED_MS = 500;

/** False for half a second. A double click on the button that opened a dialog must neither answer nor close it:
 * its second click lands on whatever has come under the pointer meanwhile. */
export function useSettled(): boolean {
  const [settled, setSettled] = useState(false);
  useEffect(() => {
    const later = setTimeout(() => setSettled(true), SETTLED_MS);
    return () => clearTimeout(later);
  }, []);
  return settled;
}

export function Dialog({
  title,
  onClose,
  children,
  wide = false,
}: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
}): ReactNode {
  const box = useRef<HTMLDialogElement>(null);
  const settled = useSettled();
  // Before it is painted: letters typed in between would go to the page under it.
  useLayoutEffect(() => {
    box.current?.showModal();
    box.current?.querySelector<HTMLElement>("input, textarea, select, [data-focus]")?.focus(); // not the button that closes it
  }, []);
  return (
    <dialog
      ref={box}
      className={wide ? "wide" : ""}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => {
        if (settled && event.target === box.current) box.current?.close();
      }}
    >
      <div className="dialog">
        <div className="dialog-head">
          <h2>{title}</h2>
          <button type="button" className="plain" aria-label="Close" onClick={() => box.current?.close()}>
            <Icon name="cross" />
          </button>
        </div>
        {children}
      </div>
      <Toasts />
    </dialog>
  );
}
