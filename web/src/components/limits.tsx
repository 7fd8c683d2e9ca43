// Limits: how far they are used up, and the form that changes one, with a question that shows what would change.
import { useState } from "react";
import type { ReactNode } from "react";
import { put } from "../api/client";
import { seldom, useAction, useData } from "../api/data";
import type { Limit, LimitUse, Page } from "../api/types";
import { fieldsOf, NEW_RATE, termsOf, UNIT_NAMES, wordsOfUse } from "../lib/limits";
import type { LimitFields, RateFields, Terms, Unit } from "../lib/limits";
import { limitAt, serviceAt } from "../lib/search";
import { number } from "../lib/time";
import { Link } from "../routes";
import { Ago, Card, Form, num, Refusal, Table } from "./basics";
import { Answer } from "./confirm";
import { Dialog } from "./dialog";
import { Diff } from "./diff";
import { Icon } from "./icon";

/** Of a queue: each limit that holds for it. */
export function LimitUses({ uses }: { uses: readonly LimitUse[] }): ReactNode {
  const limits = useData<Page<Limit>>(uses.length ? "/api/v2/limits" : null, seldom);
  const shared = new Set(limits.data?.items.map(({ name }) => name));
  if (!uses.length) return null;
  return (
    <Card title="Limits" className="flush">
      <Table label="Limits" className="cards" columns={["Limit", "At most", num("In use"), num("Next start")]}>
        {uses.map((use, index) => (
          <tr key={`${use.name} ${index}`}>
            <td>
              <Link to={shared.has(use.name) ? limitAt(use.name) : serviceAt(use.name)}>{use.name}</Link>
            </td>
            <td data-label="at most">{wordsOfUse(use)}</td>
            <td className="num" data-label="in use">
              {use.used === null ? (
                <span className="faint">by partition</span>
              ) : (
                `${number(use.used)} of ${number(use.max)}`
              )}
            </td>
            <td className="num" data-label="next start">
              <NextStart at={use.next_at} />
            </td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}

/** Of a rate: when the next task may start. */
export function NextStart({ at }: { at: number | null }): ReactNode {
  return at === null ? <span className="faint">–</span> : <Ago at={at} />;
}

/** A new limit, or other terms for one that is there. */
export function LimitForm({ limit, onClose }: { limit: Limit | null; onClose: () => void }): ReactNode {
  const [name, setName] = useState(limit?.name ?? "");
  const [fields, setFields] = useState<LimitFields>(() => fieldsOf(limit));
  const [asking, setAsking] = useState(false);
  const before = limit && termsOf(fieldsOf(limit));
  const after = termsOf(fields);
  const unchanged = before !== null && JSON.stringify(before) === JSON.stringify(after);
  const save = useAction(() => put<Limit>(`/api/v2/limits/${encodeURIComponent(name)}`, after), {
    done: limit ? `Limit ${name} changed` : `Limit ${name} created`,
    after: onClose,
    quiet: true,
  });
  const setRate = (at: number, part: Partial<RateFields>): void =>
    setFields({ ...fields, rates: fields.rates.map((one, index) => (index === at ? { ...one, ...part } : one)) });
  if (asking)
    return (
      <Dialog title={limit ? `Change the limit ${name}?` : `Create the limit ${name}?`} onClose={onClose} wide>
        <Consequences limit={limit} after={after} />
        <Diff before={before ?? {}} after={after} />
        <Refusal of={save} />
        <Answer
          act={limit ? "Change limit" : "Create limit"}
          busy={save.busy}
          keep={() => setAsking(false)}
          keepLabel="Keep editing"
          onAct={() => save.run()}
        />
      </Dialog>
    );
  return (
    <Dialog title={limit ? `Change ${name}` : "New limit"} onClose={onClose} wide>
      <Form
        onSubmit={() => {
          save.reset();
          setAsking(true);
        }}
      >
        {!limit && (
          <label className="field">
            <span>Name</span>
            <input required maxLength={128} value={name} onChange={(event) => setName(event.target.value)} />
          </label>
        )}
        <div className="fields">
          <Count
            label="At most at once (blank: no limit, 0: pause)"
            least={0}
            value={fields.total}
            onChange={(total) => setFields({ ...fields, total })}
          />
          <Count
            label="At most at once per partition"
            least={0}
            value={fields.perPartition}
            onChange={(perPartition) => setFields({ ...fields, perPartition })}
          />
        </div>
        {fields.rates.map((rate, index) => (
          <RateRow
            key={index}
            rate={rate}
            number={index + 1}
            onChange={(part) => setRate(index, part)}
            remove={() => setFields({ ...fields, rates: fields.rates.filter((_, at) => at !== index) })}
          />
        ))}
        <div className="dialog-acts">
          {fields.rates.length < 8 && (
            <button type="button" onClick={() => setFields({ ...fields, rates: [...fields.rates, NEW_RATE] })}>
              <Icon name="plus" /> Add a rate
            </button>
          )}
          <button className="primary" disabled={unchanged || !name}>
            Review
          </button>
        </div>
      </Form>
    </Dialog>
  );
}

/** Whom it is about, and what is not obvious from the numbers. */
function Consequences({ limit, after }: { limit: Limit | null; after: Terms }): ReactNode {
  const services = limit?.services ?? [];
  return (
    <>
      <p>
        {services.length
          ? `It holds for ${services.join(", ")}: at once on this server, within a second on others.`
          : "No service names it yet: it limits nothing until one does."}
        {limit !== null && limit.in_use > 0 && ` ${number(limit.in_use)} of their tasks run now; they continue.`}
      </p>
      {after.concurrency?.total === 0 && (
        <p className="fault">0 at once: none of their tasks starts until it is raised.</p>
      )}
      {after.concurrency === null && after.rate.length === 0 && <p className="fault">It limits nothing.</p>}
      <p className="faint small">The change is recorded in the audit log with your key and these numbers.</p>
    </>
  );
}

function Count({
  label,
  least,
  value,
  onChange,
  required = false,
}: {
  label: string;
  least: number;
  value: string;
  onChange: (value: string) => void;
  required?: boolean;
}): ReactNode {
  return (
    <label className="field">
      <span>{label}</span>
      <input
        type="number"
        min={least}
        max={1_000_000}
        step={1}
        required={required}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    </label>
  );
}

function RateRow({
  rate,
  number: at,
  onChange,
  remove,
}: {
  rate: RateFields;
  number: number;
  onChange: (part: Partial<RateFields>) => void;
  remove: () => void;
}): ReactNode {
  return (
    <fieldset className="rate">
      <legend>Rate {at}</legend>
      <div className="fields">
        <Count label="Starts" least={1} required value={rate.count} onChange={(count) => onChange({ count })} />
        <Count label="In" least={1} required value={rate.times} onChange={(times) => onChange({ times })} />
        <label className="field">
          <span>Unit</span>
          <select value={rate.unit} onChange={(event) => onChange({ unit: event.target.value as Unit })}>
            {UNIT_NAMES.map((unit) => (
              <option key={unit}>{unit}</option>
            ))}
          </select>
        </label>
        <label className="field">
          <span>Of</span>
          <select value={rate.per} onChange={(event) => onChange({ per: event.target.value as RateFields["per"] })}>
            <option value="total">all tasks together</option>
            <option value="partition">each partition</option>
          </select>
        </label>
        <Count label="Burst" least={0} required value={rate.burst} onChange={(burst) => onChange({ burst })} />
        <label className="field">
          <span>Cost (number or payload path)</span>
          <input
            required
            maxLength={200}
            value={rate.cost}
            onChange={(event) => onChange({ cost: event.target.value })}
          />
        </label>
      </div>
      <button type="button" onClick={remove}>
        Remove<span className="sr"> rate {at}</span>
      </button>
    </fieldset>
  );
}
