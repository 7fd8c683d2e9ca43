// Until a task has succeeded: what is done, and the command for what is next.
import type { ReactNode } from "react";
import type { Change } from "../api/types";
import { Link } from "../routes";
import { Card, Command, Mark } from "./basics";

export function FirstSteps({ now }: { now: Change }): ReactNode {
  if (now.states.succeeded) return null;
  const connected = Object.values(now.workers).some((count) => count > 0);
  const submitted = Object.keys(now.states).length > 0;
  const steps: readonly (readonly [boolean, ReactNode, string])[] = [
    [true, "The server is running", ""],
    [connected, "A worker is connected", "onward worker module:attr"],
    [
      submitted,
      <>
        A first task is submitted, from a shell or in the <Link to="/playground?door=native">Playground</Link>
      </>,
      `onward submit countdown '{"seconds": 3}' --wait`,
    ],
    [false, "A first task has succeeded", ""],
  ];
  const next = steps.findIndex(([done]) => !done);
  return (
    <Card title="First steps">
      <ol className="first-steps">
        {steps.map(([done, what, command], index) => (
          <li key={index} className={done ? "faint" : ""}>
            <Mark tone={done ? "good" : "idle"} icon={done ? "check" : "dots"}>
              {done ? "done" : index === next ? "next" : "later"}
            </Mark>
            <div className="grow stack-tight">
              <p>{what}</p>
              {!done && index === next && command && <Command text={command} />}
            </div>
          </li>
        ))}
      </ol>
    </Card>
  );
}
