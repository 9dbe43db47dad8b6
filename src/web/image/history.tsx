import { useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import type { ImageStep } from "../../client/types.ts";
import { shellWord } from "../../domain/text/shell-word.ts";
import { Link } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useResource } from "../data/resource.ts";
import { Button } from "../parts/button.tsx";
import { Age, Bytes } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { Badge, kindLabel, StatusMark } from "../parts/status-mark.tsx";
import { shortId } from "../text/format.ts";
import { linkTo } from "./link.ts";

/** Steps per request. */
const STEPS_COUNT = 100;

/** The history of an image: its steps back to the import. */
export function History({ image }: { readonly image: string }) {
  const [limit, setLimit] = useState(STEPS_COUNT);
  const { value, problem, isLoading, reload } = useResource<ImageStep[]>(`lineage ${image} ${limit}`, (signal) =>
    readLineage(image, limit + 1, signal),
  );
  if (problem !== undefined && value === undefined) {
    return <ProblemNote problem={problem} title="The history cannot be read" onRetry={reload} />;
  }
  if (value === undefined) return <Skeleton lines={8} label="Loading the history" />;
  const steps = value.slice(0, limit);
  return (
    <section class="image-history" aria-label="History">
      <ol class="image-steps stack">
        {steps.map((step) => (
          <Step key={step.uuid} step={step} isShown={step.uuid === image} />
        ))}
      </ol>
      {value.length > limit ? (
        <Button isBusy={isLoading} onClick={() => setLimit(limit + STEPS_COUNT)}>
          Show older steps
        </Button>
      ) : null}
    </section>
  );
}

/** The API gives at most 1,000 steps at once. */
const PAGE_COUNT = 1000;

async function readLineage(image: string, count: number, signal: AbortSignal): Promise<ImageStep[]> {
  const steps: ImageStep[] = [];
  while (steps.length < count) {
    const limit = Math.min(PAGE_COUNT, count - steps.length);
    const query = { limit, offset: steps.length };
    const page = await answerOf(api.v1.images({ uuid: image }).lineage.get({ query, fetch: { signal } }));
    steps.push(...page);
    if (page.length < limit) break;
  }
  return steps;
}

function Step({ step, isShown }: { readonly step: ImageStep; readonly isShown: boolean }) {
  const { uuid, tag, deleted, operation, created_at: at, size_bytes: bytes, parent } = step;
  const name = <code class="number">{shortId(uuid)}</code>;
  return (
    <li
      class={isShown ? "image-step relative image-step-shown" : "image-step relative"}
      aria-current={isShown ? "step" : undefined}
    >
      <p class="anywhere">
        <StepText step={step} />
      </p>
      <p class="image-step-facts row wrap small muted">
        <StepEnd step={step} />
        <Bytes value={bytes} isSigned />
        <Age at={at} />
        {deleted ? (
          <span>
            image {name} <Badge>deleted</Badge>
          </span>
        ) : isShown ? (
          <span>this image, {name}</span>
        ) : (
          <Link href={linkTo(uuid, "files")}>image {name}</Link>
        )}
        {tag === undefined ? null : (
          <Badge tone="accent">
            <GuestText text={tag} />
          </Badge>
        )}
        {deleted || parent === undefined ? null : <Link href={linkTo(uuid, "changes")}>Changes</Link>}
        <Link href={`/runs/${operation}`}>{kindLabel(step.kind)}</Link>
      </p>
    </li>
  );
}

/** The command of a step, or what it imported. */
export function StepText({ step: { kind, command, source, command_truncated: isCut } }: { readonly step: ImageStep }) {
  if (kind === "image_import") {
    return (
      <>
        <span class="muted">Imported </span>
        {source === undefined ? "from an archive" : <GuestText text={source} isMono isLong />}
      </>
    );
  }
  return (
    <>
      {kind === "checkpoint" ? <span class="muted">Checkpoint of </span> : null}
      <GuestText text={commandText(command ?? [])} isMono isLong />
      {isCut === true ? <span class="escape">… more arguments</span> : null}
    </>
  );
}

/** A command in the quoting of a shell; for a shell expression, the expression itself. */
function commandText(command: readonly string[]): string {
  const [program, option, script] = command;
  if (command.length === 3 && option === "-c" && script !== undefined && /(^|\/)(ba|da|a)?sh$/.test(program ?? ""))
    return script;
  return command.map(shellWord).join(" ");
}

/** The end of the run; nothing for an import, or for a checkpoint, whose run continued. */
export function StepEnd({ step }: { readonly step: ImageStep }) {
  if (step.kind !== "instance") return null;
  return <StatusMark status="SUCCESS" exitCode={step.exit_code} isTimedOut={step.timed_out} />;
}
