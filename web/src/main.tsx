import { QueryClientProvider } from "@tanstack/react-query";
import { Component, lazy, StrictMode, Suspense, useEffect, useState } from "react";
import type { ReactNode } from "react";
import { createRoot } from "react-dom/client";
import { whenLoggedOut } from "./api/client";
import { queries } from "./api/data";
import { startLive, useLive } from "./api/live";
import { Empty, Head } from "./components/basics";
import { Layout } from "./components/layout";
import { PAGES } from "./pages";
import { go, href, Link, match, startRoutes, to, usePlace } from "./routes";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/tables.css";
import "./styles/notices.css";
import "./styles/forms.css";
import "./styles/dialogs.css";
import "./styles/json.css";
import "./styles/charts.css";
import "./styles/search.css";
import "./styles/lists.css";
import "./styles/timelines.css";
import "./styles/flows.css";
import "./styles/logs.css";

function App(): ReactNode {
  const { path } = usePlace();
  if (path === LOGIN)
    return (
      <Suspense>
        <Login />
      </Suspense>
    );
  for (const page of PAGES) {
    const params = match(page.path, path);
    if (params)
      return (
        <Layout title={page.title}>
          <Caught key={path}>
            <page.view params={params} />
          </Caught>
        </Layout>
      );
  }
  return (
    <Layout title="Not found">
      <Head title="Page not found" />
      <Empty icon="search" title="There is nothing at this address">
        <Link to="/">Back to the overview</Link>
      </Empty>
    </Layout>
  );
}

/** A view that failed. One that could not be loaded while the server was away is loaded once it is back. */
function Broken({ error }: { error: Error }): ReactNode {
  const { status } = useLive();
  const [away, setAway] = useState(status !== "live");
  if (!away && status !== "live") setAway(true);
  useEffect(() => {
    if (away && status === "live") location.reload();
  }, [away, status]);
  return (
    <div className="problem" role="alert">
      <div>
        <p>{away ? "This view is loaded as soon as the server is back." : `This view failed: ${error.message}`}</p>
        {!away && <p className="faint small">If the server was updated in the meantime, reload the page.</p>}
      </div>
      <button type="button" onClick={() => location.reload()}>
        Reload
      </button>
    </div>
  );
}

/** A view that fails shows its error, and leaves the rest of the page standing. */
class Caught extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  override render(): ReactNode {
    return this.state.error ? <Broken error={this.state.error} /> : this.props.children;
  }
}

const LOGIN = "/login";
const Login = lazy(() => import("./views/Login"));

whenLoggedOut(() => {
  const { pathname, search } = location;
  const next = (pathname + search).slice(href("").length) || "/";
  if (!next.startsWith(LOGIN)) go(to(LOGIN, { next }), { replace: true });
});
startRoutes();
startLive();
// The other views come while nothing else is to be done, so that a click on one does not wait for the server.
addEventListener("load", () => setTimeout(() => PAGES.forEach((page) => void page.load().catch(() => null)), 2_000));
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <App />
    </QueryClientProvider>
  </StrictMode>,
);
