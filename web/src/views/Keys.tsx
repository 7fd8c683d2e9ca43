import { useState } from "react";
import type { ReactNode } from "react";
import { post, remove } from "../api/client";
import { seldom, useAction, useData } from "../api/data";
import { logIn, useMe } from "../api/me";
import type { CreateKey, Key, KeyCreated, Page } from "../api/types";
import { Act } from "../components/act";
import {
  Ago,
  Card,
  Command,
  Empty,
  Form,
  Head,
  Loading,
  Mark,
  Notice,
  Refusal,
  spoken,
  Table,
} from "../components/basics";
import { Confirm } from "../components/confirm";
import { Dialog } from "../components/dialog";
import { Icon } from "../components/icon";
import { full, number, serverNow, span, useNow } from "../lib/time";

const SCOPES = [
  ["submit", "submit tasks and runs; read and cancel its own"],
  ["read", "read everything, sensitive values hidden"],
  ["reveal", "read sensitive values too"],
  ["work", "be a worker of any service"],
  ["operate", "cancel, retry, pause, drain, publish, schedule"],
  ["approve", "decide approvals, but not of its own tasks"],
  ["approve:own", "decide approvals of its own tasks too"],
  ["admin", "all of these but approve:own; make and revoke keys; read the audit log"],
] as const;
const DAY_MS = 86_400_000;
const LIVES = [
  ["", "never"],
  ["30", "in 30 days"],
  ["90", "in 90 days"],
  ["365", "in a year"],
] as const;

export default function Keys(): ReactNode {
  const keys = useData<Page<Key>>("/api/v2/keys", seldom);
  const me = useMe();
  const [adding, setAdding] = useState(false);
  return (
    <>
      <Head title="Keys" lead="Who may call this server, and what each may do.">
        <Act needs="admin" className="primary" onClick={() => setAdding(true)}>
          <Icon name="key" /> New key
        </Act>
      </Head>
      <div className="stack">
        {me?.open && (
          <Notice tone="wait" icon="warn">
            No key exists yet: anyone who can reach this server may do everything. The first key closes it for all
            others.
          </Notice>
        )}
        <Loading from={keys}>
          {({ items }) =>
            items.length ? (
              <Card className="flush">
                <Table
                  label="Keys"
                  className="cards"
                  columns={["Key", "Scopes", "Rate", "Created", "Expires", spoken("Action")]}
                >
                  {items.map((key) => (
                    <Row key={key.id} one={key} mine={key.id === me?.key?.id} />
                  ))}
                </Table>
              </Card>
            ) : (
              <Empty icon="key" title="No keys yet" command="onward keys create root --scope admin" />
            )
          }
        </Loading>
      </div>
      {adding && <NewKey first={me?.open ?? false} onClose={() => setAdding(false)} />}
    </>
  );
}

function Row({ one, mine }: { one: Key; mine: boolean }): ReactNode {
  const now = useNow();
  const revoke = useAction(() => remove(`/api/v2/keys/${encodeURIComponent(one.id)}`), {
    done: `${one.name} revoked`,
    quiet: true,
  });
  const expired = one.expires_at !== null && one.expires_at <= now;
  return (
    <tr>
      <td>
        {one.name} {mine && <Mark tone="busy">yours</Mark>}
        {one.revoked_at !== null ? (
          <Mark tone="off" icon="cross" title={full(one.revoked_at)}>
            revoked
          </Mark>
        ) : (
          expired && (
            <Mark tone="off" icon="clock">
              expired
            </Mark>
          )
        )}
        <div className="mono small faint">{one.id}</div>
      </td>
      <td>{one.scopes.join(", ")}</td>
      <td data-label="rate">
        {one.rate ? (
          `${number(one.rate.count)} per ${one.rate.per_ms === 1000 ? "second" : span(one.rate.per_ms)}`
        ) : (
          <span className="faint">no limit</span>
        )}
      </td>
      <td data-label="created">
        <Ago at={one.created_at} />
      </td>
      <td data-label="expires">{one.expires_at === null ? "never" : <Ago at={one.expires_at} />}</td>
      <td className="right act-cell">
        {one.revoked_at === null && (
          <Confirm
            needs="admin"
            question={`Revoke ${one.name}?`}
            act="Revoke key"
            action={revoke}
            about={
              <p>
                Requests with it are refused within two seconds, and its connections are closed.
                {mine && " It is the key that you are logged in with."} This cannot be undone.
              </p>
            }
          >
            Revoke<span className="sr"> {one.name}</span>
          </Confirm>
        )}
      </td>
    </tr>
  );
}

function NewKey({ first, onClose }: { first: boolean; onClose: () => void }): ReactNode {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<readonly string[]>(first ? ["admin"] : ["read"]);
  const [serves, setServes] = useState("");
  const [days, setDays] = useState("");
  const [rate, setRate] = useState("");
  const create = useAction(
    async () => {
      const body: Partial<CreateKey> = {
        name,
        scopes: [...scopes, ...serves.split(/[\s,]+/).flatMap((one) => (one ? [`work:${one}`] : []))],
        ...(days && { expires_at: serverNow() + Number(days) * DAY_MS }),
        ...(rate && { rate: { count: Number(rate), per_ms: 1000 } }),
      };
      const made = await post<KeyCreated>("/api/v2/keys", body);
      if (first) await logIn(made.token); // or this page would be locked out by the key that it made
      return made;
    },
    { quiet: true },
  );
  const toggle = (scope: string): void =>
    setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope]);
  if (create.result) return <Token made={create.result} onClose={onClose} />;
  return (
    <Dialog title="New key" onClose={onClose}>
      <Form onSubmit={() => create.run()}>
        <label className="field">
          <span>Name</span>
          <input value={name} required maxLength={128} onChange={(event) => setName(event.target.value)} />
        </label>
        <fieldset>
          <legend>Scopes</legend>
          {SCOPES.map(([scope, does]) => (
            <label key={scope} className="check">
              <input
                type="checkbox"
                checked={scopes.includes(scope)}
                disabled={first && scope === "admin"}
                onChange={() => toggle(scope)}
              />
              <span>
                <b>{scope}</b> <span className="faint small">{does}</span>
              </span>
            </label>
          ))}
          <label className="field">
            <span>Worker of these services or groups only</span>
            <input value={serves} placeholder="report, gpu" onChange={(event) => setServes(event.target.value)} />
          </label>
        </fieldset>
        <div className="fields">
          <label className="field">
            <span>Expires</span>
            <select value={days} onChange={(event) => setDays(event.target.value)}>
              {LIVES.map(([value, text]) => (
                <option key={value} value={value}>
                  {text}
                </option>
              ))}
            </select>
          </label>
          <label className="field">
            <span>Calls per second (blank: no limit)</span>
            <input type="number" min="1" max="1000000" value={rate} onChange={(event) => setRate(event.target.value)} />
          </label>
        </div>
        {first && (
          <p className="faint small">The first key must have admin. This browser is logged in with it at once.</p>
        )}
        <Refusal of={create} />
        <div className="dialog-acts">
          <button className="primary" disabled={create.busy || !(scopes.length || serves)}>
            Create key
          </button>
        </div>
      </Form>
    </Dialog>
  );
}

function Token({ made, onClose }: { made: KeyCreated; onClose: () => void }): ReactNode {
  return (
    <Dialog title={`Key ${made.name}`} onClose={onClose}>
      <p>
        <b>Copy it now: it is not shown again.</b>
      </p>
      <Command text={made.token} what="key" />
      <p className="faint small">
        {made.scopes.join(", ")}. Programs send it as <code>Authorization: Bearer</code>; commands read it from{" "}
        <code>ONWARD_KEY</code>.
      </p>
      <div className="dialog-acts">
        <button type="button" onClick={onClose}>
          Done
        </button>
      </div>
    </Dialog>
  );
}
