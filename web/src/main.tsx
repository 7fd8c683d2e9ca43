import { QueryClientProvider } from "@tanstack/react-query";
import { Component, StrictMode } from "react";
import type { ReactNode } from "react";
import { createRoot } from "react-dom/client";
import { queries } from "./api/data";
import { startLive } from "./api/live";
import { Empty } from "./components/basics";
import { Layout } from "./components/layout";
import { PAGES } from "./pages";
import { Link, match, usePlace } from "./routes";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/flows.css";

function App(): ReactNode {
  const { path } = usePlace();
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
      <Empty icon="search" title="Page not found">
        <Link to="/">Back to the overview</Link>
      </Empty>
    </Layout>
  );
}

/** A view that fails shows its error, and leaves the rest of the page standing. */
class Caught extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  override render(): ReactNode {
    if (!this.state.error) return this.props.children;
    return (
      <div className="problem" role="alert">
        <div>
          <p>This view failed: {this.state.error.message}</p>
          <p className="faint small">If the server was updated in the meantime, reload the page.</p>
        </div>
        <button type="button" onClick={() => location.reload()}>
          Reload
        </button>
      </div>
    );
  }
}

startLive();
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <App />
    </QueryClientProvider>
  </StrictMode>,
);
