import { useState } from "react";
import type { ReactNode } from "react";
import { parse, problemOf, raw } from "../api/client";
import { never, of, useAction, useData } from "../api/data";
import type { Page, Service, Task } from "../api/types";
import { Act } from "../components/act";
import { Badge, Card, Command, Empty, Form, Head, Id, Mark, ProblemBox, Refusal, Tabs } from "../components/basics";
import { Icon } from "../components/icon";
import { Json, JsonEdit } from "../components/json";
import { Fields, useSchemas } from "../components/payload";
import { faultOf, pretty } from "../lib/json";
import { asCurl } from "../lib/code";
import { exampleOf, fieldsOf } from "../lib/schema";
import { useParam } from "../routes";

interface Door {
  label: string;
  lead: string;
  path: string;
  body: unknown;
  idAt: readonly string[]; // where its answer holds the task's id
}

const TEXT =
  "People hand off work. A chat back end hands a prompt to a machine behind a firewall. An agent hands a report to a service. " +
  "A back end hands ten thousand texts to be summarized. Each of these is another system today. Onward is one of them all: one core, many doors.";

const DOORS: Record<string, Door> = {
  summarize: {
    label: "Summarize",
    lead: "The tasks API: submit a text and watch it being summarized.",
    path: "/api/v1/tasks/summarize/",
    body: { content: TEXT },
    idAt: ["task_id"],
  },
  native: {
    label: "Task",
    lead: "The native API. With ?wait_ms= the response waits for the result; the task runs either way.",
    path: "/api/v2/tasks",
    body: { type: "countdown", payload: { seconds: 5 } },
    idAt: ["id"],
  },
  dispatcher: {
    label: "Dispatcher",
    lead: "Submit and wait, or poll; a worker group on a WebSocket does the work.",
    path: "/api/openai",
    body: { group: "default", messages: [{ role: "user", content: "Hello?" }], async: false },
    idAt: ["taskId"],
  },
  chat: {
    label: "Chat",
    lead: "What an OpenAI client sends; the model is a worker group.",
    path: "/v1/chat/completions",
    body: { model: "default", messages: [{ role: "user", content: "Hello?" }] },
    idAt: ["id"],
  },
};

interface Answer {
  status: number;
  ms: number;
  text: string;
  task: string | null;
}

export default function Playground(): ReactNode {
  const [name, setName] = useParam("door", "summarize");
  const door = DOORS[name] ?? DOORS.summarize!;
  return (
    <>
      <Head title="Playground" lead={door.lead} />
      <div className="stack">
        <Tabs
          label="Door"
          value={name}
          options={Object.entries(DOORS).map(([key, { label }]) => [key, label] as const)}
          onChange={setName}
        />
        <Try key={name} door={door} simple={door === DOORS.summarize} native={door === DOORS.native} />
      </div>
    </>
  );
}

function Try({ door, simple, native }: { door: Door; simple: boolean; native: boolean }): ReactNode {
  const [path, setPath] = useState(door.path);
  const [body, setBody] = useState(pretty(door.body));
  const send = useAction(() => hand(door, path, body), { quiet: true });
  const services = useData<Page<Service>>(native ? "/api/v2/services" : null, never);
  const types = [...new Set(services.data?.items.flatMap((service) => service.task_types))];
  const schemas = useSchemas();
  const written = native ? taskIn(body) : null;
  const fields = written ? fieldsOf(schemas.get(written.type)) : [];
  return (
    <div className="grid-2">
      <Card title="Request">
        <Form onSubmit={() => send.run()}>
          {simple ? (
            <label className="field">
              <span>Text to summarize</span>
              <textarea
                rows={10}
                required
                value={contentOf(body)}
                onChange={(event) => setBody(pretty({ content: event.target.value }))}
              />
            </label>
          ) : (
            <>
              <label className="field">
                <span>Path</span>
                <input
                  className="mono"
                  value={path}
                  onChange={(event) => setPath(event.target.value)}
                  required
                  pattern="/.*"
                />
              </label>
              {types.length > 0 && (
                <div className="row small">
                  <span className="faint">declared types:</span>
                  {types.map((type) => (
                    <button
                      key={type}
                      type="button"
                      className="pill"
                      aria-pressed={type === written?.type}
                      onClick={() => setBody(pretty({ type, payload: exampleOf(schemas.get(type)) }))}
                    >
                      {type}
                    </button>
                  ))}
                </div>
              )}
              {written && fields.length > 0 && (
                <Fields
                  key={written.type}
                  label={`Payload of ${written.type}`}
                  fields={fields}
                  values={written.payload}
                  onChange={(payload) => setBody(pretty({ ...written, payload }))}
                />
              )}
              <JsonEdit label="Body" value={body} onChange={setBody} rows={8} />
            </>
          )}
          <div className="row">
            <Act needs="submit" type="submit" className="primary" disabled={send.busy || faultOf(body) !== null}>
              <Icon name="play" /> {send.busy ? "Waiting for the response…" : simple ? "Summarize" : "Send"}
            </Act>
          </div>
          <Command text={asCurl("POST", path, compact(body))} />
        </Form>
      </Card>
      <Card title="Response">
        {send.error && <ProblemBox error={send.error} />}
        {send.result ? (
          <Shown answer={send.result} simple={simple} />
        ) : (
          !send.error && <Empty icon="flask" title="The response appears here" />
        )}
      </Card>
    </div>
  );
}

async function hand(door: Door, path: string, body: string): Promise<Answer> {
  const answer = await raw("POST", path, body);
  return { ...answer, task: idIn(answer.text, door.idAt) };
}

function Shown({ answer, simple }: { answer: Answer; simple: boolean }): ReactNode {
  const good = answer.status < 300;
  let value: unknown = answer.text;
  try {
    value = parse(answer.text);
  } catch {
    // an event stream, say: shown as it is
  }
  return (
    <div className="stack">
      <p className="row">
        <Mark tone={good ? "good" : "bad"} icon={good ? "check" : "cross"}>
          {answer.status}
        </Mark>
        <span className="faint">after {Math.round(answer.ms)} ms</span>
      </p>
      {!good && <Refusal of={{ error: problemOf(answer.status, answer.text) }} />}
      {typeof value === "string" ? <p className="json pre">{value}</p> : <Json value={value} label="response" />}
      {answer.task && <Watched id={answer.task} summary={simple} />}
    </div>
  );
}

/** The task that came of it, as it goes on. */
function Watched({ id, summary }: { id: string; summary: boolean }): ReactNode {
  const task = useData<Task>(`/api/v2/tasks/${encodeURIComponent(id)}`, of(id));
  if (!task.data) return null;
  const { result } = task.data;
  const told = summary && typeof result === "object" && result !== null && "summary" in result ? result.summary : null;
  return (
    <div className="stack">
      <p className="row">
        <Badge phase={task.data.phase} progress={task.data.state === "running" ? task.data.progress : null} />
        <Id id={id} to={`/tasks/${encodeURIComponent(id)}`} />
      </p>
      {typeof told === "string" && <blockquote>{told}</blockquote>}
      {task.data.state === "succeeded" && <Json value={result} label="result" />}
      {task.data.error && task.data.state !== "succeeded" && <p className="tone-bad-text">{task.data.error.message}</p>}
    </div>
  );
}

function idIn(text: string, names: readonly string[]): string | null {
  try {
    const body = JSON.parse(text) as Record<string, unknown>;
    for (const name of names) {
      const value = body[name];
      if (typeof value === "string") return value.replace(/^chatcmpl-/, "");
    }
  } catch {
    // no JSON, no id
  }
  return null;
}

function contentOf(body: string): string {
  const { content } = JSON.parse(body) as { content: string };
  return content;
}

/** The task that is written there, if its payload is an object that fields can be filled into. */
function taskIn(body: string): { type: string; payload: Record<string, unknown> } | null {
  if (faultOf(body) !== null) return null;
  const { type, payload, ...rest } = (parse(body) ?? {}) as { type?: unknown; payload?: unknown };
  if (typeof type !== "string" || typeof payload !== "object" || payload === null || Array.isArray(payload))
    return null;
  return { ...rest, type, payload: payload as Record<string, unknown> };
}

function compact(body: string): string {
  return faultOf(body) === null ? JSON.stringify(parse(body)) : body;
}
