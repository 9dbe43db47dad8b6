import { answerOf } from "../../client/client.ts";
import type { Finding } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { CommandLine } from "../parts/empty.tsx";
import { Age } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { Icon } from "../parts/icon.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { countOf } from "../text/format.ts";
import { OperatorNote } from "./operator-note.tsx";
import { Section } from "./section.tsx";

/** The findings of `coppice doctor`, for operators. */
export function HealthPart() {
  const { may } = useSession();
  if (may("operator")) return <Findings />;
  return <OperatorNote>Operators see what this host needs to run sandboxes, and what is missing.</OperatorNote>;
}

interface Group {
  readonly state: Finding["state"];
  readonly heading: (count: number) => string;
  readonly word: string;
}

const GROUPS: readonly Group[] = [
  { state: "problem", heading: (count) => countOf(count, "problem"), word: "Problem" },
  { state: "note", heading: (count) => countOf(count, "note"), word: "Note" },
  { state: "ok", heading: (count) => `${count} in order`, word: "In order" },
];

function Findings() {
  const { value, problem, isLoading, reload } = useResource("appliance-health", (signal) =>
    answerOf(api.v1.operator.health.get({ fetch: { signal } })),
  );
  if (value === undefined) {
    if (problem === undefined) return <Skeleton lines={8} label="Checking the host" />;
    return <ProblemNote title="The host could not be checked" problem={problem} onRetry={reload} />;
  }
  const { healthy, findings, checked_at } = value;
  return (
    <>
      {problem === undefined ? null : <ProblemNote problem={problem} onRetry={reload} />}
      <Section
        heading={healthy ? "This host can run sandboxes" : "This host cannot run sandboxes"}
        about={
          <>
            Checked <Age at={checked_at} />. <code>coppice doctor</code> on the host checks more: it also boots a
            virtual machine.
          </>
        }
        actions={
          <Button icon="reload" isSmall isBusy={isLoading} onClick={reload}>
            Check again
          </Button>
        }
      />
      {GROUPS.map((group) => {
        const matching = findings.filter(({ state }) => state === group.state);
        if (matching.length === 0) return null;
        return (
          <Section key={group.state} heading={group.heading(matching.length)}>
            <ul class="stack">
              {matching.map((finding) => (
                <FindingItem key={finding.name} {...finding} word={group.word} />
              ))}
            </ul>
          </Section>
        );
      })}
    </>
  );
}

function FindingItem({ name, state, summary, meaning, fix, word }: Finding & { readonly word: string }) {
  return (
    <li class={`appliance-finding appliance-finding-${state}`}>
      <span class="appliance-finding-mark muted">
        <Icon name={state === "ok" ? "check" : "warning"} />
        <span class="visually-hidden">{word}:</span>
      </span>
      <h3>{name}</h3>
      <div class="appliance-finding-text prose stack gap-1 shrink anywhere">
        {/* It may hold what a program of the host said. */}
        <p>
          <GuestText text={summary.replaceAll(/\s*\n\s*/g, " ")} isLong />
        </p>
        <p class="muted small">{meaning}</p>
        {fix === undefined ? null : <CommandLine text={fix} />}
      </div>
    </li>
  );
}
