import { savedStates } from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { Link } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useReload, useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { classes } from "../parts/classes.ts";
import { Empty } from "../parts/empty.tsx";
import { Age } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { Badge } from "../parts/status-mark.tsx";
import { shortId } from "../text/format.ts";
import type { Asking } from "./actions/questions.tsx";
import { type Point, pointsOf, reasonText } from "./model/history.ts";
import { isPossible } from "./model/states.ts";

interface HistoryProps {
  readonly sandbox: Sandbox;
  /** grows when there may be another state */
  readonly turns: number;
  readonly asking: Asking;
}

/** The saved states of a sandbox as a line of points, newest first, each with a way back. */
export function HistoryPanel({ sandbox, turns, asking }: HistoryProps) {
  const { uuid, head, state_changed_at: changedAt } = sandbox;
  const { value, problem, reload } = useResource(`states ${uuid}`, (signal) => savedStates(api, uuid, signal));
  useReload(`${turns} ${head} ${changedAt}`, reload);
  if (problem !== undefined && value === undefined) {
    return <ProblemNote problem={problem} title="The saved states cannot be read" onRetry={reload} />;
  }
  if (value === undefined) return <Skeleton lines={6} label="Loading the saved states" />;
  if (value.length === 0) return <Empty title="Nothing is saved yet" />;
  return (
    <section class="image-history" aria-label="Saved states">
      <ol class="image-steps stack">
        {pointsOf(value).map((point) => (
          <Step key={point.state.seq} point={point} sandbox={sandbox} asking={asking} />
        ))}
      </ol>
    </section>
  );
}

interface StepProps {
  readonly point: Point;
  readonly sandbox: Sandbox;
  readonly asking: Asking;
}

function Step({ point, sandbox, asking }: StepProps) {
  const { may } = useSession();
  const { state, isOnPath, follows } = point;
  const { seq, image, ref, tags, is_head: isHead, created_at: at } = state;
  const label = isHead ? "the head" : `state ${seq}`;
  // Without a machine, the files are those of the head.
  const isOther = !isHead || sandbox.state === "running";
  return (
    <li
      class={classes("image-step relative", isHead && "image-step-shown", !isOnPath && "muted")}
      aria-current={isHead ? "step" : undefined}
    >
      <div class="row wrap between gap-2-4">
        <p class="row wrap gap-1-3 shrink">
          <span class="medium">{reasonText(state)}</span>
          {isHead ? <Badge tone="accent">head</Badge> : ref === null ? null : <code class="muted small">{ref}</code>}
          {tags.map((tag) => (
            <Badge key={tag}>
              <GuestText text={tag} />
            </Badge>
          ))}
        </p>
        {isOther && isPossible("rollback", sandbox.state, may) ? (
          <Button
            isSmall
            icon="clock"
            aria-label={`Roll back to ${label}`}
            onClick={() => asking.ask({ sandbox, action: "rollback", target: { image: ref ?? image, label } })}
          >
            Roll back
          </Button>
        ) : null}
      </div>
      <p class="image-step-facts row wrap small muted">
        <span>state {seq}</span>
        <Age at={at} />
        <Link href={`/images/${image}?view=files`}>image {shortId(image)}</Link>
        {follows === null ? null : <span>follows state {follows.seq}</span>}
        {isOnPath ? null : <span>not in the history of the head</span>}
      </p>
    </li>
  );
}
