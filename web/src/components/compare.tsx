// The payload of a task beside that of the last one of its type that succeeded.
import type { ReactNode } from "react";
import { url } from "../api/client";
import { never, useData } from "../api/data";
import type { Page, Task } from "../api/types";
import { Ago, Id, Loading } from "./basics";
import { Diff } from "./diff";

export function PayloadCompare({ task }: { task: Task }): ReactNode {
  const good = useData<Page<Task>>(url("/api/v2/tasks", { type: task.type, state: "succeeded", limit: 2 }), never);
  return (
    <Loading from={good} rows={2}>
      {({ items }) => {
        const other = items.find((one) => one.id !== task.id);
        return other ? (
          <div className="stack-tight">
            <p className="faint small">
              From <Id id={other.id} to={`/tasks/${encodeURIComponent(other.id)}`} />, which succeeded{" "}
              <Ago at={other.finished_at} />, to this one:
            </p>
            <Diff before={other.payload} after={task.payload} />
          </div>
        ) : (
          <p className="faint">No other task of this type has succeeded.</p>
        );
      }}
    </Loading>
  );
}
