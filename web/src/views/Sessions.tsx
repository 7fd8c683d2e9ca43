import type { ReactNode } from "react";
import { useEcho } from "../api/live";
import type { Session } from "../api/types";
import { Ago, Empty, Head, Mark } from "../components/basics";
import { Icon } from "../components/icon";
import { Cell, Rows } from "../components/rows";
import { useList } from "../lib/list";
import { sessionAt, tasksAt } from "../lib/search";
import { number } from "../lib/time";
import { Link } from "../routes";
import { phaseWord, STATES } from "../words";

export default function Sessions(): ReactNode {
  const list = useList<Session>({ path: "/api/v2/sessions", params: {}, page: 100 });
  useEcho(list.refresh);
  return (
    <>
      <Head title="Sessions" lead="Callers that submit under a session id: their tasks and notices." />
      <div className="stack">
        <Rows
          list={list}
          label="Sessions"
          what={["session", "sessions"]}
          kind="sessions"
          at={(session) => sessionAt(session.id)}
          empty={
            <Empty
              icon="people"
              title="No sessions yet"
              command={`onward submit countdown '{"seconds": 3}' --session ann`}
            >
              Submit a task with a session id; the session gets a notice when it ends:
            </Empty>
          }
          head={
            <>
              <Cell head>Session</Cell>
              <Cell head>Tasks</Cell>
              <Cell head className="right">
                Unread
              </Cell>
              <Cell head>Listening</Cell>
              <Cell head className="right">
                Last active
              </Cell>
            </>
          }
        >
          {(session) => (
            <>
              <Cell className="list-what">
                <Link to={sessionAt(session.id)} className="clip">
                  {session.id}
                </Link>
              </Cell>
              <Cell className="tally list-second">
                <Tally session={session} />
              </Cell>
              <Cell className="num right list-low">
                <Unread count={session.unread} />
              </Cell>
              <Cell className="wide-only">
                <Listening session={session} />
              </Cell>
              <Cell className="num right faint list-high">
                <Ago at={session.last_at} />
              </Cell>
            </>
          )}
        </Rows>
      </div>
    </>
  );
}

/** How many of its tasks are in each state that any is in. */
export function Tally({ session }: { session: Session }): ReactNode {
  return STATES.map((state) => {
    const { label, tone, icon } = phaseWord(state);
    const count = session.states[state];
    return count ? (
      <Link key={state} to={tasksAt({ session: session.id, states: [state] })} className={`dot-${tone}`} title={label}>
        <Icon name={icon} size={12} /> {number(count)}
        <span className="sr"> {label}</span>
      </Link>
    ) : null;
  });
}

export function Unread({ count }: { count: number }): ReactNode {
  return count ? (
    <Mark tone="wait" icon="bell">
      {number(count)}
      <span className="sr"> unread</span>
    </Mark>
  ) : (
    <span className="faint">0</span>
  );
}

export function Listening({ session }: { session: Session }): ReactNode {
  return session.connected ? (
    <Mark tone="good" icon="link">
      {session.connected === 1 ? "connected" : `${number(session.connected)} connections`}
    </Mark>
  ) : (
    <span className="faint">no</span>
  );
}
