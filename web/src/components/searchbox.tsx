// The search of tasks: what is written is the address; what may be meant is offered under it.
import { useEffect, useEffectEvent, useRef, useState } from "react";
import type { KeyboardEvent, ReactNode } from "react";
import { flushSync } from "react-dom";
import { seldom, useData } from "../api/data";
import { useLive } from "../api/live";
import type { Page, Service, Session } from "../api/types";
import { suggestions, wordAt } from "../lib/suggest";
import type { Known, Suggestion } from "../lib/suggest";
import { TIMES } from "../lib/within";
import { STATES } from "../words";
import { Icon } from "./icon";

const TYPING_MS = 250;

/** Values that are known by name, read once somebody writes. */
function useKnown(on: boolean): Known {
  const { now } = useLive();
  const services = useData<Page<Service>>(on ? "/api/v2/services" : null, seldom);
  const sessions = useData<Page<Session>>(on ? "/api/v2/sessions?limit=100" : null, seldom);
  const queues = Object.keys(now?.queues ?? {});
  const types = services.data?.items.flatMap((service) => service.task_types) ?? [];
  return {
    state: STATES,
    type: [...new Set([...types, ...queues.filter((queue) => !queue.startsWith("group:") && queue !== "flow:runs")])],
    queue: queues,
    session: sessions.data?.items.map((session) => session.id) ?? [],
    created: TIMES,
    finished: TIMES,
  };
}

export function SearchBox({
  value,
  onChange,
  fault,
}: {
  value: string;
  onChange: (value: string) => void;
  fault: string | null;
}): ReactNode {
  const [text, setText] = useState(value);
  const [caret, setCaret] = useState(0);
  const [on, setOn] = useState(false);
  const [at, setAt] = useState(-1);
  const sent = useRef([value]); // what the address was given and may still come back from there, in order
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const ours = sent.current.indexOf(value);
    sent.current = ours < 0 ? [value] : sent.current.slice(ours);
    if (ours < 0) setText(value); // the address was changed elsewhere on the page
  }, [value]);
  const send = (): void => {
    if (text === sent.current.at(-1)) return;
    sent.current.push(text);
    onChange(text);
  };
  const sendLate = useEffectEvent(send);
  useEffect(() => {
    const later = setTimeout(() => sendLate(), TYPING_MS);
    return () => clearTimeout(later);
  }, [text]);
  const known = useKnown(on);
  const { from, to, word } = wordAt(text, Math.min(caret, text.length));
  const offered = on ? suggestions(word, known) : [];
  const row = Math.min(at, offered.length - 1);

  const take = (one: Suggestion): void => {
    const next = `${text.slice(0, from)}${one.text}${one.whole ? " " : ""}${text.slice(to).trimStart()}`;
    const end = from + one.text.length + (one.whole ? 1 : 0);
    // Not a frame later: the next letter would be typed before the caret is there.
    flushSync(() => {
      setText(next);
      setCaret(end);
      setAt(-1);
    });
    box.current?.setSelectionRange(end, end);
  };
  const pressed = (event: KeyboardEvent<HTMLInputElement>): void => {
    if (event.key === "Escape") {
      if (on && offered.length) setOn(false);
      else event.currentTarget.blur();
    } else if (event.key === "ArrowDown" && offered.length) setAt(Math.min(row + 1, offered.length - 1));
    else if (event.key === "ArrowUp" && offered.length) setAt(Math.max(row - 1, -1));
    else if ((event.key === "Enter" || event.key === "Tab") && row >= 0) take(offered[row]!);
    else return;
    if (event.key !== "Escape") event.preventDefault();
  };
  return (
    <div className="search" role="search">
      <Icon name="search" />
      <input
        ref={box}
        type="search"
        aria-label="Search tasks"
        aria-describedby="search-help"
        aria-autocomplete="list"
        aria-controls={offered.length ? "suggestions" : undefined}
        aria-activedescendant={row >= 0 ? `suggestion-${row}` : undefined}
        placeholder="state:failed -type:report queue:gpu created:<2h or any text"
        value={text}
        spellCheck={false}
        autoCapitalize="off"
        autoComplete="off"
        onFocus={() => setOn(true)}
        onBlur={() => {
          setOn(false);
          // What is clicked next goes by the address: it must not overwrite letters that have not got there yet.
          send();
        }}
        onSelect={(event) => setCaret(event.currentTarget.selectionStart ?? text.length)}
        onChange={(event) => {
          setText(event.target.value);
          setCaret(event.target.selectionStart ?? event.target.value.length);
          setOn(true);
          setAt(-1);
        }}
        onKeyDown={pressed}
      />
      {offered.length > 0 && (
        <ul id="suggestions" className="suggestions choices" role="listbox" aria-label="Suggestions">
          {offered.map((one, index) => (
            <li
              key={one.text}
              id={`suggestion-${index}`}
              role="option"
              aria-selected={index === row}
              onPointerDown={(event) => {
                event.preventDefault(); // the box keeps the focus
                take(one);
              }}
            >
              <span className="mono">{one.text}</span> <span className="faint small">{one.hint}</span>
            </li>
          ))}
        </ul>
      )}
      <span id="search-help" className={fault ? "fault" : "sr"}>
        {fault ??
          "Fields: state:failed, type:report, queue:gpu, session:s1, tag:night, batch:ID, partition:p1, created:<2h, finished:>1d; with - before a field what has it is left out; any other text is searched in id, type, payload and error"}
      </span>
    </div>
  );
}
