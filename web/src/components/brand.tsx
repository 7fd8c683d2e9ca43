// The mark and the name.
import type { ReactNode } from "react";

export function Brand(): ReactNode {
  return (
    <span className="brand">
      <svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true">
        <rect width="32" height="32" rx="8" />
        <path d="M8 9l7 7-7 7M17 9l7 7-7 7" />
      </svg>
      Onward
    </span>
  );
}
