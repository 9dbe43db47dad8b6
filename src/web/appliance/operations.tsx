import { answerOf } from "../../client/client.ts";
import type { Operation } from "../../client/types.ts";
import { OPERATION_KINDS, OPERATION_STATUSES } from "../../domain/operation.ts";
import { queryOf } from "../app/links.ts";
import { Link, navigate, useRoute } from "../app/router.ts";
import { api } from "../data/api.ts";
import { useOperationChanges } from "../data/changes.ts";
import { useResource } from "../data/resource.ts";
import { Empty } from "../parts/empty.tsx";
import { type Choice, Select } from "../parts/field.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { KIND_LABELS, shownOf } from "../parts/status-mark.tsx";
import { OperationRows } from "./operation-rows.tsx";
import { offsetOf, PAGE_ROWS, Pages } from "./pages.tsx";

type Status = Operation["status"];
type Kind = Operation["kind"];

const STATUSES: readonly Choice<Status | "">[] = [
  { value: "", label: "Any" },
  ...OPERATION_STATUSES.map((status) => ({ value: status, label: shownOf({ status }).text })),
];

const KINDS: readonly Choice<Kind | "">[] = [
  { value: "", label: "Any" },
  ...OPERATION_KINDS.map((kind) => ({ value: kind, label: KIND_LABELS[kind] })),
];

const TIMES: readonly Choice[] = [
  { value: "", label: "Any time" },
  { value: "15m", label: "Last 15 minutes" },
  { value: "1h", label: "Last hour" },
  { value: "24h", label: "Last day" },
  { value: "7d", label: "Last 7 days" },
];

/** The value of a choice that a link names; none when there is no such choice. */
function chosen<Value extends string>(choices: readonly Choice<Value>[], text: string | null): Value | undefined {
  return choices.find(({ value }) => value !== "" && value === text)?.value;
}

/** One's operations, with filters that are in the link. */
export function OperationsPart() {
  const { parameters } = useRoute();
  const status = chosen(STATUSES, parameters.get("status")) as Status | undefined;
  const kind = chosen(KINDS, parameters.get("kind")) as Kind | undefined;
  const since = chosen(TIMES, parameters.get("since"));
  const offset = offsetOf(parameters);
  const link = (change: Readonly<Record<string, string | number>>) => queryOf({ status, kind, since, ...change });
  // Other filters begin with the newest.
  const filter = (change: Readonly<Record<string, string>>) => navigate(link(change), { replace: true });

  const key = `appliance-operations${link({ from: offset })}`;
  const { value, problem, reload } = useResource(key, (signal) =>
    answerOf(
      api.v1.operations.get({
        query: {
          ...{ about: true, limit: PAGE_ROWS + 1, offset },
          ...(status === undefined ? {} : { status }),
          ...(kind === undefined ? {} : { kind }),
          ...(since === undefined ? {} : { since }),
        },
        fetch: { signal },
      }),
    ),
  );
  useOperationChanges(reload);
  const rows = value?.slice(0, PAGE_ROWS);
  const isFiltered = status !== undefined || kind !== undefined || since !== undefined;
  return (
    <>
      <search class="appliance-filters">
        <Select label="Status" value={status ?? ""} choices={STATUSES} onValue={(next) => filter({ status: next })} />
        <Select label="Kind" value={kind ?? ""} choices={KINDS} onValue={(next) => filter({ kind: next })} />
        <Select label="Started" value={since ?? ""} choices={TIMES} onValue={(next) => filter({ since: next })} />
        {isFiltered ? (
          <Link class="appliance-clear" href="/appliance/operations">
            Clear
          </Link>
        ) : null}
      </search>
      {problem === undefined ? null : (
        <ProblemNote title="The operations could not be read" problem={problem} onRetry={reload} />
      )}
      {rows === undefined && problem === undefined ? <Skeleton lines={8} label="Loading operations" /> : null}
      {rows?.length === 0 ? <NoOperations isFiltered={isFiltered} isLater={offset > 0} /> : null}
      {rows === undefined || rows.length === 0 ? null : <OperationRows label="Operations, newest first" rows={rows} />}
      {value === undefined ? null : <Pages offset={offset} count={value.length} link={(from) => link({ from })} />}
    </>
  );
}

function NoOperations({ isFiltered, isLater }: { readonly isFiltered: boolean; readonly isLater: boolean }) {
  if (isLater) return <Empty title="No older operations" />;
  if (isFiltered) {
    return <Empty title="No matching operations" text="Change the filters, or clear them." />;
  }
  return (
    <Empty
      title="No operations yet"
      text="Imports, runs and checkpoints are operations. Begin with an image:"
      command="coppice image import REGISTRY/NAME:VERSION --tag NAME"
    />
  );
}
