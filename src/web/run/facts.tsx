import { hasEnded } from "../../client/operations.ts";
import type { Operation, OperationRequest } from "../../client/types.ts";
import { useSeconds } from "../browser/clock.ts";
import { ImageLink } from "../operations/image-link.tsx";
import { resultImage, tookMs } from "../operations/outcome.ts";
import { Age, Bytes, Duration, Figure } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { kindLabel } from "../parts/status-mark.tsx";
import { bytesText } from "../text/format.ts";
import type { EventFeed } from "./event-feed-reader.ts";
import { problemOfOperation } from "./failure.ts";
import type { UsageSeries } from "./usage/use-usage.ts";

interface FactsProps {
  readonly operation: Operation;
  readonly request: OperationRequest | undefined;
  readonly feed: EventFeed;
  readonly usage?: UsageSeries;
}

/** The figures of an operation, and the reason of its failure. */
export function Facts({ operation, request, feed, usage }: FactsProps) {
  const now = useSeconds(!hasEnded(operation));
  const { result } = operation;
  const command = result !== undefined && "exit_code" in result ? result : undefined;
  const image = resultImage(operation);
  const from = request?.kind === "instance" ? request.image : undefined;
  const machine = feed.machine?.data as
    | { readonly vcpus: number; readonly memory_bytes: number; readonly isolation: string }
    | undefined;
  const used = command ?? (hasEnded(operation) ? usedUntil(operation) : usage?.samples.latest);
  const failure = problemOfOperation(operation);
  return (
    <>
      {failure === null ? null : <ProblemNote problem={failure} title={`${kindLabel(operation.kind)} failed`} />}
      {command?.oom_killed === true ? <p class="prose muted">The sandbox ran out of memory.</p> : null}
      {command?.timed_out === true ? <p class="prose muted">The time limit ended the command.</p> : null}
      <dl class="figures flex wrap run-figures">
        <Figure label="Started" value={<Age at={operation.created_at} />} note={waitedNote(operation)} />
        <Figure
          label={hasEnded(operation) ? "Duration" : "Elapsed"}
          value={<Duration value={tookMs(operation, now)} />}
        />
        {command === undefined ? null : <Figure label="Exit code" value={command.exit_code} />}
        {used?.cpu_time_ms === undefined ? null : (
          <Figure label="CPU time" value={<Duration value={used.cpu_time_ms} />} />
        )}
        {used?.memory_bytes === undefined ? null : (
          <Figure label={hasEnded(operation) ? "Peak memory" : "Memory"} value={<Bytes value={used.memory_bytes} />} />
        )}
        {machine === undefined ? null : (
          <Figure
            label="Machine"
            value={`${machine.vcpus} CPU, ${bytesText(machine.memory_bytes)}`}
            note={machine.isolation === "vm" ? undefined : "emulated: not a security boundary"}
          />
        )}
        {result !== undefined && "size_bytes" in result ? (
          <Figure label="Size" value={<Bytes value={result.size_bytes} />} />
        ) : null}
        {result !== undefined && "pause_ms" in result ? (
          <Figure label="Writes paused for" value={<Duration value={result.pause_ms} />} />
        ) : null}
        {from === undefined ? null : <Figure label="From" value={<ImageLink id={from} />} />}
        {image === undefined ? null : <Figure label="Result" value={<ImageLink id={image} tag={result?.tag} />} />}
      </dl>
      {request === undefined || !("tag" in request) || request.tag === undefined || hasEnded(operation) ? null : (
        <p class="prose muted">
          The image of the result will get the tag <GuestText text={request.tag} isMono />.
        </p>
      )}
    </>
  );
}

/** The usage of a command that was ended from outside. */
function usedUntil({ error }: Operation): { readonly cpu_time_ms?: number; readonly memory_bytes?: number } {
  const { cpu_time_ms: cpu, memory_bytes: memory } = error?.details ?? {};
  return {
    ...(typeof cpu === "number" ? { cpu_time_ms: cpu } : {}),
    ...(typeof memory === "number" ? { memory_bytes: memory } : {}),
  };
}

function waitedNote({ created_at: created, started_at: started }: Operation): string | undefined {
  if (started === undefined) return "waiting for its turn";
  const seconds = Math.round((Date.parse(started) - Date.parse(created)) / 1000);
  return seconds < 1 ? undefined : `waited ${seconds} s`;
}
