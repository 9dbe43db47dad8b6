import { answerOf } from "../../client/client.ts";
import type { Load } from "../../client/types.ts";
import { useInterval } from "../browser/use-interval.ts";
import { api } from "../data/api.ts";
import { useOperationChanges } from "../data/changes.ts";
import { useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { OperationTable } from "../operations/table.tsx";
import { ButtonLink } from "../parts/button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Age, Bytes } from "../parts/figure.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { bytesText, countOf, countText } from "../text/format.ts";
import { Meter } from "./meter.tsx";
import { OperatorNote } from "./operator-note.tsx";
import { Section } from "./section.tsx";

/** How often the load is read, in `milliseconds`. */
const LOAD_MS = 3_000;
/** Own operations that are listed here, of each status; all of them are under Operations. */
const OWN_MAX = 50;

/** Running and waiting operations: those of all accounts for operators, and one's own. */
export function NowPart() {
  const { may } = useSession();
  return (
    <>
      {may("operator") ? <LoadSection /> : null}
      {may("operations:read") ? <OwnSection /> : null}
      {may("operator") ? null : (
        <OperatorNote>
          Operators see how much of the memory, the CPUs and the virtual machines is in use, and what each account runs.
        </OperatorNote>
      )}
    </>
  );
}

function LoadSection() {
  const load = useResource("appliance-load", (signal) => answerOf(api.v1.operator.load.get({ fetch: { signal } })));
  useInterval(LOAD_MS, load.reload);
  if (load.value === undefined) {
    if (load.problem === undefined) return <Skeleton lines={5} label="Loading" />;
    return <ProblemNote title="The load could not be read" problem={load.problem} onRetry={load.reload} />;
  }
  const { memory_bytes, vcpus, machines, accounts } = load.value;
  const pool = `${machines.ready} of ${countText(machines.pool_size)} ready in the pool`;
  return (
    <>
      {load.problem === undefined ? null : <ProblemNote problem={load.problem} />}
      <Section heading="Budget">
        <div class="appliance-meters">
          <Meter label="Memory" used={memory_bytes.used} total={memory_bytes.budget} text={bytesText} />
          <Meter label="Virtual CPUs" used={vcpus.used} total={vcpus.budget} text={countText} />
          <dl class="appliance-meter stack gap-1">
            <dt class="muted">Virtual machines</dt>
            <dd>
              <strong class="number">{countText(machines.in_use)}</strong> in use
              <span class="muted small block">{pool}</span>
            </dd>
          </dl>
        </div>
      </Section>
      <Section heading="Accounts">
        {accounts.length === 0 ? (
          <p class="muted">Nothing is running or waiting.</p>
        ) : (
          <Table label="Work by account" columns={ACCOUNTS} rows={accounts} rowKey={({ account }) => account} />
        )}
      </Section>
    </>
  );
}

const ACCOUNTS: readonly Column<Load["accounts"][number]>[] = [
  { id: "account", label: "Account", cell: ({ account }) => account, isWide: true },
  { id: "executing", label: "Running", isFigure: true, cell: ({ executing }) => countText(executing) },
  { id: "pending", label: "Waiting", isFigure: true, cell: ({ pending }) => countText(pending) },
  { id: "memory", label: "Memory", isFigure: true, cell: ({ memory_bytes }) => <Bytes value={memory_bytes} /> },
  { id: "vcpus", label: "Virtual CPUs", isFigure: true, cell: ({ vcpus }) => countText(vcpus) },
  {
    id: "oldest",
    label: "Longest wait",
    isFigure: true,
    cell: ({ oldest_pending_at }) => <Age at={oldest_pending_at} />,
  },
];

function OwnSection() {
  const { may } = useSession();
  const own = useResource("appliance-own", async (signal) => {
    const [running, waiting] = await Promise.all(
      (["EXECUTING", "PENDING"] as const).map((status) =>
        answerOf(api.v1.operations.get({ query: { status, about: true, limit: OWN_MAX }, fetch: { signal } })),
      ),
    );
    return [...(running ?? []), ...(waiting ?? [])];
  });
  useOperationChanges(own.reload);
  return (
    <Section
      heading="Your operations"
      about={
        own.value === undefined || own.value.length === 0
          ? undefined
          : `${countOf(own.value.length, "operation")} in progress.`
      }
    >
      {own.problem === undefined ? null : (
        <ProblemNote title="Your operations could not be read" problem={own.problem} onRetry={own.reload} />
      )}
      {own.value === undefined && own.problem === undefined ? <Skeleton label="Loading your operations" /> : null}
      {own.value?.length === 0 ? (
        <Empty
          title="Nothing in progress"
          text="Your operations appear here while they wait or run, wherever you started them."
          command="coppice run --image tag:NAME -- COMMAND"
          action={
            may("instances:spawn") ? (
              <ButtonLink href="/runs/new" icon="run">
                Start a run
              </ButtonLink>
            ) : null
          }
        />
      ) : null}
      {own.value === undefined || own.value.length === 0 ? null : (
        <OperationTable label="Your operations in progress" rows={own.value} />
      )}
    </Section>
  );
}
