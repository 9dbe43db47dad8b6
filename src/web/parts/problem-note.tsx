import type { Problem } from "../data/problem.ts";
import { Button } from "./button.tsx";
import { GuestText } from "./guest-text.tsx";
import { Icon } from "./icon.tsx";

export interface ProblemNoteProps {
  readonly problem: Problem;
  /** the failed action, such as "The files could not be listed"; absent: the message says it */
  readonly title?: string;
  /** not offered if the token does not allow the request: a retry would fail as well */
  readonly onRetry?: () => void;
}

/** A problem, with advice. */
export function ProblemNote({ problem, title, onRetry }: ProblemNoteProps) {
  const help = helpFor(problem);
  return (
    <div class="problem flex items-start gap-3" role="alert">
      <Icon name="warning" />
      <div class="fill shrink">
        {title === undefined ? null : <p class="strong">{title}</p>}
        <p>
          <GuestText text={sentence(problem.message)} isLong />
        </p>
        {help === "" ? null : <p class="muted">{help}</p>}
      </div>
      {onRetry === undefined || problem.status === 403 ? null : (
        <Button isSmall onClick={onRetry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** Messages of the interface begin in lower case and have no full stop. */
function sentence(message: string): string {
  const text = message.trim();
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

function helpFor({ status, code, retryAfterSeconds, details }: Problem): string {
  const scope = details["scope"] ?? details["required_scope"];
  if (code === "unreachable" || status === 503) return "This page tries again as soon as the appliance answers.";
  if (status === 403 && typeof scope === "string") return `The token of this session lacks the scope ${scope}.`;
  if (status === 403) return "The token of this session does not allow it. Sign in with one that does.";
  // For a missing path in an image, the message is enough.
  if (status === 404 && typeof details["path"] === "string") return "";
  if (status === 404) return "It may have been deleted, or it belongs to another account.";
  if (status === 429) {
    return retryAfterSeconds === null ? "Wait a little, then try again." : `Try again in ${retryAfterSeconds} s.`;
  }
  if (status === 507) return "Delete what is no longer needed, or ask the operator for more space.";
  if (status >= 500) return "The log of the appliance has the details.";
  return "";
}
