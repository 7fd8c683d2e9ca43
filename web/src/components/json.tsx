// JSON to read and to edit. Everything is text: nothing that a payload holds becomes markup or a link.
import { useState } from "react";
import type { ReactNode } from "react";
import { isExact } from "../api/client";
import { faultOf, pretty } from "../lib/json";
import { Copy } from "./basics";

const OPEN_DEPTH = 2;
const MOST = 100; // entries of one list shown before somebody asks for more
const LONG = 500; // characters of one text, likewise

/** `marked` are keys at the top that changed. */
export function Json({
  value,
  label,
  marked,
}: {
  value: unknown;
  label: string;
  marked?: ReadonlySet<string>;
}): ReactNode {
  return (
    <div className="json" role="region" aria-label={label} tabIndex={0}>
      <div className="json-acts">
        <Copy text={pretty(value)} label={`Copy ${label}`} />
      </div>
      {marked && typeof value === "object" && value !== null ? (
        Object.entries(value as Record<string, unknown>).map(([name, child]) => (
          <div key={name} className={marked.has(name) ? "json-changed" : ""}>
            {marked.has(name) && <span className="sr">changed: </span>}
            <Node name={name} value={child} depth={1} />
          </div>
        ))
      ) : (
        <Node value={value} depth={0} />
      )}
    </div>
  );
}

function Node({ value, name, depth }: { value: unknown; name?: string; depth: number }): ReactNode {
  const composite = typeof value === "object" && value !== null && !isExact(value);
  if (!composite)
    return (
      <div className="json-line">
        {name !== undefined && <span className="json-key">{name}: </span>}
        <Leaf value={value} />
      </div>
    );
  return <Branch value={value} depth={depth} {...(name === undefined ? {} : { name })} />;
}

function Branch({ value, name, depth }: { value: object; name?: string; depth: number }): ReactNode {
  const [shown, setShown] = useState(MOST);
  const list = Array.isArray(value);
  const entries = Object.entries(value as Record<string, unknown>);
  const [open, setOpen] = useState(depth < OPEN_DEPTH && entries.length <= MOST);
  const size = list ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length)
    return (
      <div className="json-line">
        {name !== undefined && <span className="json-key">{name}: </span>}
        <span className="faint">{list ? "[]" : "{}"}</span>
      </div>
    );
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {name !== undefined && <span className="json-key">{name} </span>}
        <span className="faint">{size}</span>
      </summary>
      {open && (
        <div className="json-in">
          {entries.slice(0, shown).map(([key, child]) => (
            <Node key={key} name={key} value={child} depth={depth + 1} />
          ))}
          {entries.length > shown && (
            <button type="button" className="plain" onClick={() => setShown(shown + 10 * MOST)}>
              {entries.length - shown} more
            </button>
          )}
        </div>
      )}
    </details>
  );
}

function Leaf({ value }: { value: unknown }): ReactNode {
  const [whole, setWhole] = useState(false);
  if (typeof value !== "string")
    return <span className={value === null ? "faint" : "json-number"}>{JSON.stringify(value)}</span>;
  const long = value.length > LONG && !whole;
  return (
    <>
      <span className="json-text">{JSON.stringify(long ? value.slice(0, LONG) : value)}</span>
      {long && (
        <button type="button" className="plain" onClick={() => setWhole(true)}>
          … {value.length - LONG} more characters
        </button>
      )}
    </>
  );
}

/** Text that should be JSON, and what is wrong with it. */
export function JsonEdit({
  value,
  onChange,
  label,
  rows = 8,
}: {
  value: string;
  onChange: (text: string) => void;
  label: string;
  rows?: number;
}): ReactNode {
  const fault = faultOf(value);
  return (
    <label className="field">
      <span>{label}</span>
      <textarea
        className="mono"
        rows={rows}
        spellCheck={false}
        value={value}
        aria-invalid={fault !== null}
        onChange={(event) => onChange(event.target.value)}
      />
      {fault && <span className="fault">{fault}</span>}
    </label>
  );
}
