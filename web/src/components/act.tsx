// A button that needs a scope. Without it, it says so instead of being refused.
import type { ButtonHTMLAttributes, ReactNode } from "react";
import { useLack } from "../api/me";
import type { Scope } from "../api/me";

export function Act({
  needs,
  owner,
  children,
  disabled = false,
  title,
  type = "button",
  ...rest
}: ButtonHTMLAttributes<HTMLButtonElement> & { needs: Scope; owner?: string | null }): ReactNode {
  const lack = useLack(needs, owner);
  return (
    <button
      {...rest}
      type={type}
      disabled={disabled || lack !== undefined}
      title={lack ?? title}
      aria-description={lack}
    >
      {children}
    </button>
  );
}
