import { expect, test } from "vitest";
import { exampleOf, fieldsOf } from "./schema";
import type { Schema } from "./schema";

const SCHEMA: Schema = {
  type: "object",
  required: ["amount", "card"],
  properties: {
    amount: { type: "integer", minimum: 1 },
    note: { anyOf: [{ type: "string" }, { type: "null" }], description: "shown to the payer" },
    kind: { enum: ["visa", "amex"] },
    card: { $ref: "#/$defs/Card" },
    fast: { type: "boolean", default: true },
  },
  $defs: { Card: { type: "object", required: ["number"], properties: { number: { type: "string" } } } },
};

test("each property is a field of its kind", () => {
  expect(fieldsOf(SCHEMA).map((field) => [field.name, field.kind, field.required])).toEqual([
    ["amount", "number", true],
    ["note", "text", false],
    ["kind", "choice", false],
    ["card", "json", true],
    ["fast", "boolean", false],
  ]);
  expect(fieldsOf(SCHEMA)[1]!.hint).toBe("shown to the payer");
});

test("an example has what is required, and nothing else", () => {
  expect(exampleOf(SCHEMA)).toEqual({ amount: 1, card: { number: "" } });
});

test("a schema without properties has no fields", () => {
  expect(fieldsOf({ type: "array" })).toEqual([]);
  expect(fieldsOf(undefined)).toEqual([]);
});
