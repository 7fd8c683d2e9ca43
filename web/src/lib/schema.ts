// JSON Schema, as far as a form needs it: the fields of an object, and something to begin with.

export interface Schema {
  type?: string | readonly string[];
  title?: string;
  description?: string;
  default?: unknown;
  examples?: readonly unknown[];
  enum?: readonly unknown[];
  const?: unknown;
  properties?: Readonly<Record<string, Schema>>;
  required?: readonly string[];
  anyOf?: readonly Schema[];
  oneOf?: readonly Schema[];
  minimum?: number;
  $ref?: string;
  $defs?: Readonly<Record<string, Schema>>;
}

export interface Field {
  name: string;
  label: string;
  hint: string;
  required: boolean;
  kind: "text" | "number" | "boolean" | "choice" | "json";
  choices: readonly unknown[];
  schema: Schema;
}

/** Where a reference leads, and what remains of "this or null". */
function plain(schema: Schema, root: Schema): Schema {
  const named = schema.$ref?.match(/^#\/\$defs\/(.+)$/)?.[1];
  const found = named ? { ...root.$defs?.[named], ...schema, $ref: undefined } : schema;
  const some = (found.anyOf ?? found.oneOf ?? []).filter((one) => one.type !== "null");
  const { anyOf: _, oneOf: __, ...rest } = found as Schema;
  return some.length === 1 ? { ...plain(some[0]!, root), ...(rest as Schema) } : (found as Schema);
}

function kindOf({ type, enum: choices }: Schema): Field["kind"] {
  if (choices) return "choice";
  const one = Array.isArray(type) ? type.filter((name) => name !== "null") : [type];
  if (one.length !== 1) return "json";
  return (
    ({ string: "text", number: "number", integer: "number", boolean: "boolean" } as const)[one[0] as "string"] ?? "json"
  );
}

/** None: it is not an object with named properties, so all of it is written as JSON. */
export function fieldsOf(schema: Schema | undefined): Field[] {
  if (!schema) return [];
  const object = plain(schema, schema);
  return Object.entries(object.properties ?? {}).map(([name, given]) => {
    const one = plain(given, schema);
    return {
      name,
      label: one.title && one.title.toLowerCase() !== name.replaceAll("_", " ").toLowerCase() ? one.title : name,
      hint: one.description ?? "",
      required: object.required?.includes(name) ?? false,
      kind: kindOf(one),
      choices: one.enum ?? [],
      schema: one,
    };
  });
}

/** A value to begin with: what the schema gives as an example or default, else the least of its kind. */
export function exampleOf(schema: Schema | undefined, root: Schema | undefined = schema): unknown {
  if (!schema || !root) return {};
  const one = plain(schema, root);
  for (const given of [one.default, one.const, one.examples?.[0], one.enum?.[0]]) if (given !== undefined) return given;
  if (one.properties)
    return Object.fromEntries(
      Object.entries(one.properties)
        .filter(([name]) => one.required?.includes(name))
        .map(([name, child]) => [name, exampleOf(child, root)]),
    );
  const type = Array.isArray(one.type) ? (one.type[0] as string) : (one.type as string | undefined);
  return (
    { string: "", number: one.minimum ?? 0, integer: one.minimum ?? 0, boolean: false, array: [], object: {} }[
      type ?? ""
    ] ?? null
  );
}
