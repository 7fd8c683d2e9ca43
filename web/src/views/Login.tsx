import { useState } from "react";
import type { ReactNode } from "react";
import { useAction } from "../api/data";
import { logIn } from "../api/me";
import { connectLive } from "../api/live";
import { Card, Command, Form, Refusal } from "../components/basics";
import { Brand } from "../components/brand";
import { usePageTitle } from "../lib/title";
import { go, useParam } from "../routes";

/** Outside of the page's frame: nothing of it can be shown before. */
export default function Login(): ReactNode {
  const [next] = useParam("next", "/");
  const [token, setToken] = useState("");
  usePageTitle("Log in");
  const login = useAction(() => logIn(token.trim()), {
    quiet: true,
    after: () => {
      connectLive();
      go(next.startsWith("/") ? next : "/", { replace: true });
    },
  });
  return (
    <main className="login">
      <Card>
        <div className="stack">
          <Brand />
          <h1>Log in</h1>
          <Form onSubmit={() => login.run()}>
            <label className="field">
              <span>Key</span>
              <input
                type="password"
                className="mono"
                autoComplete="current-password"
                placeholder="onward_…"
                required
                autoFocus
                value={token}
                onChange={(event) => setToken(event.target.value)}
              />
            </label>
            <Refusal of={login} />
            <button className="primary" disabled={login.busy}>
              Log in
            </button>
          </Form>
          <p className="faint small">
            This server needs a key. An administrator makes one on the page Keys, or in a shell:
          </p>
          <Command text="onward keys create NAME --scope read --scope operate" />
        </div>
      </Card>
    </main>
  );
}
