import { useState } from "preact/hooks";
import type { PathLog } from "../../../client/types.ts";
import { Link } from "../../browser/router.ts";
import { request } from "../../data/api.ts";
import { useLoaded } from "../../data/resource.ts";
import { Button } from "../../parts/button.tsx";
import { Age, Bytes } from "../../parts/figure.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { Badge, kindLabel } from "../../parts/status-mark.tsx";
import { shortId } from "../../text/format.ts";
import { StepEnd, StepText } from "../history.tsx";
import { linkTo } from "../link.ts";
import type { EncodedPath } from "../paths.ts";

/** Changes that are shown at first, and further ones with each request. */
const CHANGES_COUNT = 10;

interface PathProps {
  readonly image: string;
  readonly path: EncodedPath;
}

/** The steps that changed a path. They are read when a person asks for them. */
export function PathHistory({ image, path }: PathProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="image-path-log" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Who changed this</summary>
      {isOpen ? <Changes image={image} path={path} /> : null}
    </details>
  );
}

function Changes({ image, path }: PathProps) {
  const [count, setCount] = useState(CHANGES_COUNT);
  const { value, problem, isLoading, reload } = useLoaded<PathLog>(`log ${image} ${path} ${count}`, (signal) =>
    readLog({ image, path }, count, signal),
  );
  const [last, setLast] = useState<PathLog>();
  if (value !== undefined && value !== last) setLast(value);
  const log = value ?? last;
  if (problem !== undefined)
    return <ProblemNote problem={problem} title="The changes cannot be read" onRetry={reload} />;
  if (log === undefined) return <Skeleton lines={3} label="Loading the changes" />;
  return (
    <div class="stack gap-3">
      <ol class="image-steps stack" aria-label="Changes of this path">
        {log.items.map((item) => (
          <Change key={item.step.uuid} item={item} isShown={item.step.uuid === image} path={path} />
        ))}
      </ol>
      {log.next === undefined ? null : (
        <Button isBusy={isLoading} onClick={() => setCount(count + CHANGES_COUNT)}>
          Show older changes
        </Button>
      )}
    </div>
  );
}

async function readLog({ image, path }: PathProps, count: number, signal: AbortSignal): Promise<PathLog> {
  const address = `/v1/inspect/${encodeURIComponent(image)}/log?limit=${count}&path=${path}`;
  return (await (await request(address, { signal })).json()) as PathLog;
}

const CHANGE_LABELS = { added: "added", modified: "modified", removed: "removed", replaced: "replaced" } as const;

interface ChangeProps {
  readonly item: PathLog["items"][number];
  readonly isShown: boolean;
  readonly path: EncodedPath;
}

function Change({ item, isShown, path }: ChangeProps) {
  const { change, below, type, size_bytes: bytes, unknown_steps: unknown, step } = item;
  return (
    <li class={isShown ? "image-step relative image-step-shown" : "image-step relative"}>
      <p class="anywhere">
        <Badge>{below === true ? "changed below" : CHANGE_LABELS[change]}</Badge> <StepText step={step} />
      </p>
      <p class="image-step-facts row wrap small muted">
        <StepEnd step={step} />
        {type === "file" && bytes !== undefined ? <Bytes value={bytes} /> : null}
        <Age at={step.created_at} />
        {step.deleted ? (
          <span>
            image <code class="number">{shortId(step.uuid)}</code> <Badge>deleted</Badge>
          </span>
        ) : change === "removed" || isShown ? null : (
          <Link href={linkTo(step.uuid, "files", path)}>as it was then</Link>
        )}
        <Link href={`/runs/${step.operation}`}>{kindLabel(step.kind)}</Link>
        {unknown === undefined ? null : <span>or one of {unknown} deleted states before it</span>}
      </p>
    </li>
  );
}
