// Searches that this browser keeps by name.
import { useState } from "react";
import type { ReactNode } from "react";
import { useViews } from "../lib/kept";
import { go, to } from "../routes";
import { Form } from "./basics";
import { Dialog } from "./dialog";
import { Icon } from "./icon";

export function SavedViews({ q }: { q: string }): ReactNode {
  const [views, setViews] = useViews();
  const [naming, setNaming] = useState(false);
  const [name, setName] = useState("");
  const here = views.find((view) => view.q === q);
  if (!views.length && !q) return null;
  return (
    <div className="row views">
      {views.length > 0 && <span className="faint small">Views</span>}
      {views.map((view) => (
        <span key={view.name} className="view">
          <button
            type="button"
            className="pill"
            aria-pressed={view === here}
            title={view.q}
            onClick={() => go(to("/tasks", { q: view.q }))}
          >
            {view.name}
          </button>
          {view === here && (
            <button
              type="button"
              className="plain"
              aria-label={`Remove the view ${view.name}`}
              onClick={() => setViews(views.filter((one) => one !== view))}
            >
              <Icon name="cross" size={12} />
            </button>
          )}
        </span>
      ))}
      {q && !here && (
        <button type="button" className="plain" onClick={() => setNaming(true)}>
          <Icon name="plus" size={14} /> Save this view
        </button>
      )}
      {naming && (
        <Dialog title="Save this view" onClose={() => setNaming(false)}>
          <Form
            onSubmit={() => {
              setViews([...views.filter((view) => view.name !== name.trim()), { name: name.trim(), q }]);
              setNaming(false);
              setName("");
            }}
          >
            <p className="mono">{q}</p>
            <label className="field">
              <span>Name</span>
              <input
                value={name}
                required
                maxLength={60}
                onChange={(event) => setName(event.target.value)}
                data-focus
              />
            </label>
            <p className="faint small">Kept in this browser.</p>
            <div className="dialog-acts">
              <button className="primary" disabled={!name.trim()}>
                Save
              </button>
            </div>
          </Form>
        </Dialog>
      )}
    </div>
  );
}
