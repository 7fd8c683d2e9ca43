import { useState } from "react";
import type { ReactNode } from "react";
import { post, put, url } from "../api/client";
import { seldom, useAction, useData } from "../api/data";
import { useEcho } from "../api/live";
import type { Notification, Page, Preferences, Session as SessionShape } from "../api/types";
import { Ago, Card, Copy, Detail, Empty, Facts, Head, Loading, Mark, Tabs } from "../components/basics";
import { Icon } from "../components/icon";
import { TaskList } from "../components/tasklist";
import { useRowKeys } from "../lib/keys";
import { parseSearch } from "../lib/search";
import { number, span } from "../lib/time";
import { useTitle } from "../lib/title";
import type { ViewProps } from "../pages";
import { go, Link, useParam } from "../routes";
import type { Tone } from "../words";
import { Listening, Tally, Unread } from "./Sessions";

const TABS = [
  ["tasks", "Tasks"],
  ["notices", "Notices"],
  ["preferences", "Preferences"],
] as const;
type Kind = Notification["type"];
const TYPES: Record<Kind, readonly [string, Tone]> = {
  task_completed: ["completed", "good"],
  task_failed: ["failed", "bad"],
  task_timeout: ["overdue", "wait"],
  approval_requested: ["waits for approval", "wait"],
};
/** How a notice was delivered. */
const WAYS: Record<string, string> = {
  websocket: "pushed",
  sse: "pushed",
  poll: "fetched",
  webhook: "posted",
  interaction: "delivered with a response",
};

export default function Session({ params }: ViewProps): ReactNode {
  const id = params.id!;
  useTitle(id);
  const path = `/api/v2/sessions/${encodeURIComponent(id)}`;
  const session = useData<SessionShape>(path);
  useEcho(() => void session.refetch());
  const [tab, setTab] = useParam("tab", "tasks");
  return (
    <Detail from={session} same={(one) => one.id === id} title="Session" back={["/sessions", "All sessions"]}>
      {(found) => (
        <>
          <Head
            title={
              <>
                {id} <Copy text={id} label="Copy id" />
              </>
            }
          />
          <div className="stack">
            <Card>
              <Facts
                facts={[
                  ["tasks", number(found.tasks)],
                  [
                    "by state",
                    Object.keys(found.states).length > 0 && <span className="tally">{<Tally session={found} />}</span>,
                  ],
                  ["unread notices", <Unread count={found.unread} />],
                  ["listening", <Listening session={found} />],
                  ["last active", <Ago at={found.last_at} />],
                ]}
              />
            </Card>
            <Tabs label="Shown" value={tab as (typeof TABS)[number][0]} options={TABS} onChange={setTab} />
            {tab === "notices" ? (
              <Notices session={found} path={path} />
            ) : tab === "preferences" ? (
              <Wishes path={path} />
            ) : (
              <TaskList
                search={{ ...parseSearch(""), session: id }}
                empty={<Empty icon="list" title="No tasks left" />}
              />
            )}
          </div>
        </>
      )}
    </Detail>
  );
}

function Notices({ session, path }: { session: SessionShape; path: string }): ReactNode {
  const notices = useData<Page<Notification>>(
    url(`${path}/notifications`, { peek: true, limit: 200 }),
    undefined,
    session.unread,
  );
  useEcho(() => void notices.refetch());
  const ack = useAction((id: string) => post(`${path}/notifications/${encodeURIComponent(id)}/ack`), {
    done: "Acknowledged",
  });
  const items = notices.data?.items ?? [];
  const [at] = useRowKeys(
    items.map((one) => one.notification_id),
    (index) => go(`/tasks/${encodeURIComponent(items[index]!.task_id)}`),
    {
      a: (index) => !items[index]!.read && ack.run(items[index]!.notification_id),
    },
  );
  return (
    <Loading from={notices}>
      {({ items: shown, next }) =>
        shown.length ? (
          <Card className="flush">
            <ul className="notices" aria-label="Notices">
              {shown.map((notice, index) => (
                <li key={notice.notification_id} className={index === at ? "at" : ""}>
                  <Mark tone={TYPES[notice.type]?.[1] ?? "idle"} icon="bell">
                    {TYPES[notice.type]?.[0] ?? notice.type}
                  </Mark>
                  <div className="grow">
                    <Link to={`/tasks/${encodeURIComponent(notice.task_id)}`}>{notice.message}</Link>
                    <p className="faint small">
                      <Ago at={Date.parse(notice.timestamp)} />, <Delivered notice={notice} />,{" "}
                      {notice.read_at ? (
                        <>
                          acknowledged <Ago at={notice.read_at} />
                        </>
                      ) : (
                        "not acknowledged"
                      )}
                    </p>
                  </div>
                  {!notice.read && (
                    <button type="button" disabled={ack.busy} onClick={() => ack.run(notice.notification_id)}>
                      <Icon name="check" size={14} /> Acknowledge<span className="sr"> {notice.message}</span>
                    </button>
                  )}
                </li>
              ))}
            </ul>
            {next && <p className="more faint">The newest 200.</p>}
          </Card>
        ) : (
          <Empty
            icon="bell"
            title="No notices yet"
            command={`curl -sN -H 'accept: text/event-stream' '${location.origin}${path}/notifications'`}
          >
            Each task that ends sends a notice. Listen for them:
          </Empty>
        )
      }
    </Loading>
  );
}

function Delivered({ notice }: { notice: Notification }): ReactNode {
  if (!notice.delivered_by || !notice.delivered_at) return "not delivered yet";
  const after = Math.max(0, notice.delivered_at - Date.parse(notice.timestamp));
  return (
    <span
      title={notice.delivered_by}
    >{`${WAYS[notice.delivered_by] ?? notice.delivered_by} after ${span(after)}`}</span>
  );
}

function Wishes({ path }: { path: string }): ReactNode {
  const wishes = useData<Preferences>(`${path}/preferences`, seldom);
  return <Loading from={wishes}>{(kept) => <WishForm kept={kept} path={path} />}</Loading>;
}

function WishForm({ kept, path }: { kept: Preferences; path: string }): ReactNode {
  const [draft, setDraft] = useState<Preferences | null>(null);
  const keep = useAction((next: Preferences) => put(`${path}/preferences`, next), { done: "Saved", inTurn: path });
  // What was read while a change was under way is older than what was chosen since; what was refused does not hold.
  const now = keep.error ? kept : (draft ?? kept);
  const set = (part: Partial<Preferences>): void => {
    setDraft({ ...now, ...part });
    keep.run({ ...now, ...part });
  };
  return (
    <div className="grid-2">
      <Card title="Push settings">
        <div className="stack">
          <label className="row">
            <input type="checkbox" checked={now.push} onChange={(event) => set({ push: event.target.checked })} />
            Push notices to connected clients
          </label>
          <fieldset disabled={!now.push}>
            <legend>Kinds</legend>
            {(Object.keys(TYPES) as Kind[]).map((type) => (
              <label key={type} className="row">
                <input
                  type="checkbox"
                  checked={now.types.includes(type)}
                  onChange={(event) =>
                    set({
                      types: event.target.checked ? [...now.types, type] : now.types.filter((one) => one !== type),
                    })
                  }
                />
                {TYPES[type][0]}
              </label>
            ))}
          </fieldset>
          <p className="faint small">All notices are stored for seven days, pushed or not.</p>
        </div>
      </Card>
      <Card title="Webhook">
        {now.webhook ? (
          <Facts
            facts={[
              ["posted to", <span className="mono small">{now.webhook.url}</span>],
              ["kinds", now.webhook.types.map((type) => TYPES[type]?.[0] ?? type).join(", ")],
            ]}
          />
        ) : (
          <Empty
            icon="link"
            title="No webhook"
            command={`curl -s -X PUT '${location.origin}${path}/preferences' -d '{"webhook": {"url": "http://127.0.0.1:9000/notices"}}'`}
          >
            Notices can also be posted, signed, to a URL:
          </Empty>
        )}
      </Card>
    </div>
  );
}
