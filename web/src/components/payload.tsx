// A payload to write: a field for each property that the service's schema names, or all of it as JSON.
import { useState } from "react";
import type { ReactNode } from "react";
import { parse } from "../api/client";
import { seldom, useData } from "../api/data";
import type { Page, Service } from "../api/types";
import { faultOf, pretty } from "../lib/json";
import { fieldsOf } from "../lib/schema";
import type { Field, Schema } from "../lib/schema";
import { Tabs } from "./basics";
import { JsonEdit } from "./json";

const FORMS = [
  ["fields", "Fields"],
  ["json", "JSON"],
] as const;

type Values = Record<string, unknown>;

/** Of every task type that a service declares with one. */
export function useSchemas(): ReadonlyMap<string, Schema> {
  const services = useData<Page<Service>>("/api/v2/services", seldom);
  return new Map(
    (services.data?.items ?? []).flatMap(({ schema }) => Object.entries(schema as Record<string, Schema>)),
  );
}

export function PayloadEdit({
  type,
  label,
  value,
  onChange,
  rows,
}: {
  type: string;
  label: string;
  value: string;
  onChange: (text: string) => void;
  rows?: number;
}): ReactNode {
  const [form, setForm] = useState<"fields" | "json">("fields");
  const fields = fieldsOf(useSchemas().get(type));
  const found = faultOf(value) === null ? parse(value) : null;
  const object = typeof found === "object" && found !== null && !Array.isArray(found);
  if (!fields.length || !object) return <JsonEdit label={label} value={value} onChange={onChange} rows={rows ?? 8} />;
  return (
    <div className="stack-tight">
      <Tabs label={`${label} as`} value={form} options={FORMS} onChange={setForm} />
      {form === "json" ? (
        <JsonEdit label={label} value={value} onChange={onChange} rows={rows ?? 8} />
      ) : (
        <Fields label={label} fields={fields} values={found as Values} onChange={(next) => onChange(pretty(next))} />
      )}
    </div>
  );
}

export function Fields({
  label,
  fields,
  values,
  onChange,
}: {
  label: string;
  fields: readonly Field[];
  values: Values;
  onChange: (values: Values) => void;
}): ReactNode {
  return (
    <fieldset>
      <legend>{label}</legend>
      {fields.map((field) => (
        <OneField
          key={field.name}
          field={field}
          value={values[field.name]}
          onChange={(value) => {
            const { [field.name]: _, ...rest } = values;
            onChange(value === undefined ? rest : { ...values, [field.name]: value });
          }}
        />
      ))}
    </fieldset>
  );
}

/** An empty field that is not required is left out. */
function OneField({
  field,
  value,
  onChange,
}: {
  field: Field;
  value: unknown;
  onChange: (value: unknown) => void;
}): ReactNode {
  const { kind, required, choices } = field;
  const name = (
    <span>
      {field.label} {!required && <span className="faint small">optional</span>}
    </span>
  );
  if (kind === "boolean")
    return (
      <label className="check">
        <input type="checkbox" checked={value === true} onChange={(event) => onChange(event.target.checked)} />
        {name}
      </label>
    );
  return (
    <label className="field">
      {name}
      {kind === "choice" ? (
        <select
          value={choices.indexOf(value)}
          onChange={(event) => onChange(event.target.value === "-1" ? undefined : choices[Number(event.target.value)])}
        >
          {(!required || !choices.includes(value)) && <option value="-1">–</option>}
          {choices.map((choice, index) => (
            <option key={index} value={index}>
              {typeof choice === "string" ? choice : JSON.stringify(choice)}
            </option>
          ))}
        </select>
      ) : kind === "json" ? (
        <JsonField value={value} required={required} onChange={onChange} />
      ) : kind === "number" && (value === undefined || value === null || typeof value !== "string") ? (
        <NumberField value={value} required={required} onChange={onChange} />
      ) : (
        <input
          value={value == null ? "" : typeof value === "string" ? value : JSON.stringify(value)}
          onChange={(event) => onChange(event.target.value === "" && !required ? undefined : event.target.value)}
        />
      )}
      {field.hint && <span className="faint small">{field.hint}</span>}
    </label>
  );
}

/** Keeps the letters that were typed: on the way to 1.05 stands 1.0, and written back as 1 it would become 15. */
function NumberField({
  value,
  required,
  onChange,
}: {
  value: unknown;
  required: boolean;
  onChange: (value: unknown) => void;
}): ReactNode {
  const [typed, setTyped] = useState<{ text: string; means: string } | null>(null);
  const now = value == null ? "" : JSON.stringify(value);
  return (
    <input
      type="number"
      step="any"
      required={required}
      value={typed?.means === now ? typed.text : now}
      onChange={(event) => {
        const text = event.target.value;
        const next = text === "" ? undefined : faultOf(text) === null ? parse(text) : Number(text); // .5 is no JSON
        setTyped({ text, means: next === undefined ? "" : JSON.stringify(next) });
        onChange(next);
      }}
    />
  );
}

/** Keeps what is typed while it is no JSON yet. */
function JsonField({
  value,
  required,
  onChange,
}: {
  value: unknown;
  required: boolean;
  onChange: (value: unknown) => void;
}): ReactNode {
  const [typed, setTyped] = useState<string | null>(null);
  const fault = typed === null || (typed === "" && !required) ? null : faultOf(typed);
  return (
    <>
      <textarea
        className="mono"
        rows={3}
        spellCheck={false}
        value={typed ?? (value === undefined ? "" : pretty(value))}
        aria-invalid={fault !== null}
        onChange={(event) => {
          const text = event.target.value;
          setTyped(text);
          if (text === "" && !required) onChange(undefined);
          else if (faultOf(text) === null) onChange(parse(text));
        }}
      />
      {fault && <span className="fault">{fault}</span>}
    </>
  );
}
