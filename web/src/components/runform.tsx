// Starting a run: a field for each parameter that the flow speaks of, or all of it as JSON.
import { useState } from "react";
import type { ReactNode } from "react";
import { parse, post } from "../api/client";
import { useAction } from "../api/data";
import type { RunBrief } from "../api/types";
import { paramsOf } from "../lib/definition";
import { go } from "../routes";
import { Form, Refusal, Tabs } from "./basics";
import { Dialog } from "./dialog";
import { Icon } from "./icon";
import { JsonEdit } from "./json";
import { faultOf, pretty } from "../lib/json";

const FORMS = [
  ["fields", "Fields"],
  ["json", "JSON"],
] as const;

/** JSON where it is some, else the text as it stands. */
function guessed(text: string): unknown {
  return faultOf(text) === null ? parse(text) : text;
}

/** A text stands as it is, unless it would be read as JSON. */
function asTyped(value: unknown): string {
  return typeof value === "string" && guessed(value) === value ? value : JSON.stringify(value);
}

function kindOf(text: string): string {
  const value = guessed(text);
  if (value === null) return "null";
  return Array.isArray(value)
    ? "list"
    : { string: "text", number: "number", boolean: "boolean", object: "object" }[typeof value as "string"];
}

export function RunForm({
  flow,
  version,
  definition,
  given: begin = {},
  onClose,
}: {
  flow: string;
  version: number;
  definition: unknown;
  given?: Record<string, unknown>; // params to begin with
  onClose: () => void;
}): ReactNode {
  const names = [...new Set([...paramsOf(definition), ...Object.keys(begin)])];
  const [form, setForm] = useState<"fields" | "json">(names.length ? "fields" : "json");
  const [values, setValues] = useState<Record<string, string>>(() =>
    Object.fromEntries(Object.entries(begin).map(([name, value]) => [name, asTyped(value)])),
  );
  const [text, setText] = useState("{}");
  const [shared, setShared] = useState("{}");
  const given = Object.fromEntries(names.flatMap((name) => (values[name] ? [[name, guessed(values[name])]] : [])));
  const start = useAction(
    () =>
      post<RunBrief>("/api/v2/runs", {
        flow,
        version,
        params: form === "fields" ? given : parse(text),
        shared: parse(shared),
      }),
    {
      done: "Run started",
      quiet: true,
      after: (run) => go(`/runs/${encodeURIComponent(run.id)}`),
    },
  );
  const change = (next: "fields" | "json"): void => {
    if (next === "json") setText(pretty(given));
    setForm(next);
  };
  return (
    <Dialog title={`Run ${flow}, version ${version}`} onClose={onClose} wide>
      <Form onSubmit={() => start.run()}>
        {names.length > 0 && <Tabs label="Parameter format" value={form} options={FORMS} onChange={change} />}
        {form === "fields" ? (
          <>
            <p className="faint small">
              The parameters this flow uses. Valid JSON is sent as JSON, anything else as text.
            </p>
            {names.map((name) => (
              <label className="field" key={name}>
                <span>
                  {name} {values[name] && <span className="faint small">{kindOf(values[name])}</span>}
                </span>
                <input
                  className="mono"
                  value={values[name] ?? ""}
                  onChange={(event) => setValues({ ...values, [name]: event.target.value })}
                />
              </label>
            ))}
          </>
        ) : (
          <JsonEdit label="Parameters" value={text} onChange={setText} />
        )}
        <details>
          <summary className="faint">Initial shared state</summary>
          <JsonEdit label="Shared state" value={shared} onChange={setShared} rows={4} />
        </details>
        <Refusal of={start} />
        <div className="dialog-acts">
          <button
            className="primary"
            disabled={start.busy || faultOf(shared) !== null || (form === "json" && faultOf(text) !== null)}
          >
            <Icon name="play" /> Run
          </button>
        </div>
      </Form>
    </Dialog>
  );
}
