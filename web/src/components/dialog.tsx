// The browser's own dialog: it keeps the focus inside and Escape closes it.
import { useEffect, useRef } from "react";
import type { ReactNode } from "react";
import { Icon } from "./icon";

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
  useEffect(() => {
    box.current?.showModal();
    box.current?.querySelector<HTMLElement>("input, textarea, select")?.focus(); // not the button that closes it
  }, []);
  return (
    <dialog
      ref={box}
      className={wide ? "wide" : ""}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => {
        if (event.target === box.current) box.current?.close();
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
    </dialog>
  );
}
