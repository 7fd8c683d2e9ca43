// The small things that every view is made of.
import type { ReactNode } from "react";
import { Problem } from "../api/client";
import type { Task } from "../api/types";
import { ago, full, span, useNow } from "../lib/time";
import { Link } from "../routes";
import { phaseWord } from "../words";
import type { Tone } from "../words";
import { Icon } from "./icon";
import type { IconName } from "./icon";
import { say } from "./toasts";

/** The head of a page: what it is, and what may be done here. */
export function Head({
  title,
  children,
  lead,
}: {
  title: ReactNode;
  children?: ReactNode;
  lead?: ReactNode;
}): ReactNode {
  return (
    <header className="head">
      <div>
        <h1>{title}</h1>
        {lead && <p className="faint">{lead}</p>}
      </div>
      {children && <div className="head-acts">{children}</div>}
    </header>
  );
}

export function Card({
  title,
  children,
  acts,
  className = "",
}: {
  title?: ReactNode;
  children: ReactNode;
  acts?: ReactNode;
  className?: string;
}): ReactNode {
  return (
    <section className={`card ${className}`}>
      {(title || acts) && (
        <div className="card-head">
          <h2>{title}</h2>
          {acts && <div className="card-acts">{acts}</div>}
        </div>
      )}
      {children}
    </section>
  );
}

/** A word with a colour and a shape. */
export function Mark({
  tone,
  icon,
  title,
  children,
}: {
  tone: Tone;
  icon?: IconName;
  title?: string;
  children: ReactNode;
}): ReactNode {
  return (
    <span className={`badge tone-${tone}`} title={title}>
      {icon && <Icon name={icon} size={12} />}
      {children}
    </span>
  );
}

/** A phase or state. */
export function Badge({ phase, progress }: { phase: string; progress?: number | null }): ReactNode {
  const { label, tone, icon } = phaseWord(phase);
  return (
    <Mark tone={tone} icon={icon}>
      {label}
      {progress != null && ` ${Math.round(progress * 100)} %`}
    </Mark>
  );
}

export function Notice({ tone, icon, children }: { tone: Tone; icon: IconName; children: ReactNode }): ReactNode {
  return (
    <div className={`notice tone-${tone}`} role="status">
      <Icon name={icon} />
      <div className="grow">{children}</div>
    </div>
  );
}

/** Names and values; what has none is left out. */
export function Facts({ facts }: { facts: readonly (readonly [string, ReactNode])[] }): ReactNode {
  return (
    <dl className="facts">
      {facts.map(([name, value]) =>
        value ? (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ) : null,
      )}
    </dl>
  );
}

interface Column {
  name: string;
  className?: string;
  spoken?: boolean; // only read out
}

export const num = (name: string, wide = false): Column => ({ name, className: wide ? "num wide-only" : "num" });
export const spoken = (name: string): Column => ({ name, spoken: true });

/** A table in a box that scrolls sideways by itself. */
export function Table({
  label,
  columns,
  className,
  children,
}: {
  label: string;
  columns: readonly (string | Column)[];
  className?: string;
  children: ReactNode;
}): ReactNode {
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={label}>
      <table className={className}>
        <thead>
          <tr>
            {columns.map((column) => {
              const {
                name,
                className: cell,
                spoken: only,
              }: Column = typeof column === "string" ? { name: column } : column;
              return (
                <th key={name} className={cell}>
                  {only ? <span className="sr">{name}</span> : name}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

export function Form({
  onSubmit,
  className,
  children,
}: {
  onSubmit: () => void;
  className?: string;
  children: ReactNode;
}): ReactNode {
  return (
    <form
      className={className}
      onSubmit={(event) => {
        event.preventDefault();
        onSubmit();
      }}
    >
      {children}
    </form>
  );
}

export function Ago({ at }: { at: number | null }): ReactNode {
  const now = useNow();
  if (at === null) return <span className="faint">–</span>;
  return (
    <time dateTime={new Date(at).toISOString()} title={full(at)}>
      {ago(at, now)}
    </time>
  );
}

/** How long it has run, or ran. A run of a flow is claimed at each step: it counts from its beginning. */
export function Took({ task }: { task: Task }): ReactNode {
  const now = useNow();
  const run = task.type.startsWith("flow:") && task.type !== "flow:approval";
  const begun = run ? task.created_at : task.started_at;
  if (!begun) return null;
  const end = task.finished_at ?? (run || task.state === "running" ? now : null);
  return end === null ? null : span(Math.max(0, end - begun));
}

function copyBySelecting(text: string): boolean {
  const box = document.createElement("textarea");
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  return done;
}

export function copyText(text: string, what = "Copied"): void {
  const refused = (): void => say("The browser refused access to the clipboard", { bad: true });
  // Without https only this machine's own pages have a clipboard; others get the old way.
  if ("clipboard" in navigator) navigator.clipboard.writeText(text).then(() => say(what), refused);
  else if (copyBySelecting(text)) say(what);
  else refused();
}

export function Copy({
  text,
  label = "Copy",
  said = "Copied",
}: {
  text: string;
  label?: string;
  said?: string;
}): ReactNode {
  return (
    <button type="button" className="plain" aria-label={label} title={label} onClick={() => copyText(text, said)}>
      <Icon name="copy" size={14} />
    </button>
  );
}

/** Its end: what two ids of one minute differ in. The same everywhere, so that the eye can match them. */
export function shortId(id: string): string {
  return id.length > 18 ? `…${id.slice(-12)}` : id;
}

/** An id, short enough to read; the whole of it to copy. */
export function Id({ id, to }: { id: string; to?: string }): ReactNode {
  const short = shortId(id);
  return to ? (
    <Link to={to} className="mono" title={id}>
      {short}
    </Link>
  ) : (
    <span className="mono" title={id}>
      {short} <Copy text={id} label="Copy id" />
    </span>
  );
}

/** Nothing here: says so, and shows the command that changes it. */
export function Empty({
  icon = "dots",
  title,
  children,
  command,
}: {
  icon?: IconName;
  title: string;
  children?: ReactNode;
  command?: string;
}): ReactNode {
  return (
    <div className="empty">
      <Icon name={icon} size={28} />
      <p className="empty-title">{title}</p>
      {children && <div className="faint">{children}</div>}
      {command && <Command text={command} />}
    </div>
  );
}

/** A command of ours is made to reach this server: others listen elsewhere. */
export function forHere(command: string): string {
  const usual = /^http:\/\/(127\.0\.0\.1|localhost):8070$/.test(location.origin);
  return usual || !command.startsWith("onward ") ? command : `${command} --server ${location.origin}`;
}

export function Command({ text, what = "command" }: { text: string; what?: string }): ReactNode {
  return (
    <div className="command">
      <code>{forHere(text)}</code>
      <Copy text={forHere(text)} label={`Copy ${what}`} />
    </div>
  );
}

export function Skeleton({ rows = 4 }: { rows?: number }): ReactNode {
  return (
    <div className="skeleton" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, row) => (
        <span key={row} />
      ))}
    </div>
  );
}

export function ProblemBox({ error, again }: { error: Error; again?: () => void }): ReactNode {
  const gone = error instanceof Problem && error.status === 404;
  return (
    <div className="problem" role="alert">
      <Icon name={gone ? "search" : "warn"} size={20} />
      <div>
        <p>{error.message}</p>
        {error instanceof Problem && error.hint && !gone && <p className="faint small">{error.hint}</p>}
      </div>
      {again && (
        <button type="button" onClick={again}>
          Retry
        </button>
      )}
    </div>
  );
}

/** Why the server did not do it, beside the button that asked for it. */
export function Refusal({ of: { error } }: { of: { error: Error | null } }): ReactNode {
  if (!error) return null;
  const { hint, faults } = error instanceof Problem ? error : { hint: null, faults: [] };
  return (
    <div className="fault" role="alert">
      {error.message}
      {faults.map((fault) => (
        <div key={fault.pointer}>
          <code>{fault.pointer}</code> {fault.message}
        </div>
      ))}
      {hint && <div className="faint">{hint}</div>}
    </div>
  );
}

interface Loaded<T> {
  data: T | undefined;
  error: Error | null;
  refetch: () => unknown;
}

/** The three ends of a question: not yet, not at all, and here it is. */
export function Loading<T>({
  from,
  children,
  rows = 4,
}: {
  from: Loaded<T>;
  children: (data: T) => ReactNode;
  rows?: number;
}): ReactNode {
  if (from.data !== undefined) return children(from.data);
  if (from.error) return <ProblemBox error={from.error} again={() => void from.refetch()} />;
  return <Skeleton rows={rows} />;
}

/** The page of one thing: what is wrong with it, a way back, or the thing itself. `same`: it is the one that was asked for. */
export function Detail<T>({
  from,
  same,
  title,
  back,
  children,
}: {
  from: Loaded<T>;
  same: (data: T) => boolean;
  title: string;
  back: readonly [string, string];
  children: (data: T) => ReactNode;
}): ReactNode {
  if (from.data !== undefined && same(from.data)) return children(from.data);
  if (!from.error) return <Skeleton rows={8} />;
  return (
    <>
      <Head title={title} />
      <ProblemBox error={from.error} again={() => void from.refetch()} />
      <p>
        <Link to={back[0]}>{back[1]}</Link>
      </p>
    </>
  );
}

export function Tabs<T extends string>({
  value,
  options,
  onChange,
  label,
}: {
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
  label: string;
}): ReactNode {
  return (
    <div className="tabs" role="group" aria-label={label}>
      {options.map(([name, text]) => (
        <button key={name} type="button" aria-pressed={name === value} onClick={() => onChange(name)}>
          {text}
        </button>
      ))}
    </div>
  );
}
