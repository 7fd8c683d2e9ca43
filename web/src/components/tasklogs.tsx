// What the handlers of a task logged, followed while it runs.
import { useEffect, useRef, useState } from "react";
import type { ReactNode } from "react";
import type { LogRecord } from "../api/types";
import { isAtLeast, LEVELS } from "../lib/logs";
import { clock, full, number } from "../lib/time";
import type { Tone } from "../words";
import { Card, Copy, Skeleton } from "./basics";

const SHOWN = 300;
const BOTTOM_PX = 40; // so near to the end, one is at it
const TONES: Record<string, Tone> = { DEBUG: "off", INFO: "busy", WARNING: "wait", ERROR: "bad", CRITICAL: "bad" };

export function TaskLogs({ lines, running }: { lines: readonly LogRecord[] | null; running: boolean }): ReactNode {
  const [least, setLeast] = useState("DEBUG");
  const [attempt, setAttempt] = useState("");
  const [most, setMost] = useState(SHOWN);
  const box = useRef<HTMLOListElement>(null);
  const atEnd = useRef(true);
  const attempts = [...new Set((lines ?? []).map((line) => line.attempt))];
  const fitting = (lines ?? []).filter(
    (line) => isAtLeast(line.level, least) && (!attempt || line.attempt === Number(attempt)),
  );
  const shown = fitting.slice(-most);
  const last = fitting.length;
  useEffect(() => {
    const list = box.current;
    if (list && running && atEnd.current) list.scrollTop = list.scrollHeight;
  }, [last, running]);
  if (lines !== null && !lines.length && !running) return null;
  return (
    <Card
      title={
        <span className="row">
          Logs {lines && <span className="faint">({number(lines.length)})</span>}
          {running && <span className="live-tail faint small">following</span>}
        </span>
      }
      acts={
        lines !== null &&
        lines.length > 0 && (
          <>
            {attempts.length > 1 && (
              <label className="row small">
                <span className="faint">attempt</span>
                <select className="narrow" value={attempt} onChange={(event) => setAttempt(event.target.value)}>
                  <option value="">all</option>
                  {attempts.map((one) => (
                    <option key={one}>{one}</option>
                  ))}
                </select>
              </label>
            )}
            <label className="row small">
              <span className="faint">from level</span>
              <select className="narrow" value={least} onChange={(event) => setLeast(event.target.value)}>
                {LEVELS.map((level) => (
                  <option key={level}>{level}</option>
                ))}
              </select>
            </label>
            <Copy text={fitting.map(asText).join("\n")} label="Copy these lines" />
          </>
        )
      }
    >
      {lines === null ? (
        <Skeleton />
      ) : (
        <ol
          ref={box}
          className="log lines"
          tabIndex={0}
          aria-label="Log lines"
          onScroll={({ currentTarget: list }) => {
            atEnd.current = list.scrollHeight - list.scrollTop - list.clientHeight < BOTTOM_PX;
          }}
        >
          {fitting.length > shown.length && (
            <li>
              <button type="button" className="plain" onClick={() => setMost(most + 10 * SHOWN)}>
                Show {number(fitting.length - shown.length)} earlier
              </button>
            </li>
          )}
          {!shown.length && <li className="faint">{running ? "No line yet" : "No line of this level"}</li>}
          {shown.map((line, index) => (
            <li key={fitting.length - shown.length + index}>
              <time className="num faint" dateTime={new Date(line.at).toISOString()} title={full(line.at)}>
                {clock(line.at)}
              </time>
              <span className={`log-type dot-${TONES[line.level] ?? "idle"}`}>{line.level}</span>
              <span className="mono small line-text" title={`${line.logger}, attempt ${line.attempt}`}>
                {line.message}
                {line.traceback && (
                  <details>
                    <summary>Traceback</summary>
                    <pre className="traceback">{line.traceback}</pre>
                  </details>
                )}
              </span>
            </li>
          ))}
        </ol>
      )}
    </Card>
  );
}

function asText(line: LogRecord): string {
  const head = `${new Date(line.at).toISOString()} ${line.level} ${line.logger}: ${line.message}`;
  return line.traceback ? `${head}\n${line.traceback}` : head;
}
