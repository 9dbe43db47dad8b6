import type { ComponentChildren } from "preact";
import { answerOf } from "../../client/client.ts";
import { given } from "../../domain/given.ts";
import { OPERATION_KINDS, OPERATION_STATUSES } from "../../domain/operation.ts";
import { queryOf } from "../browser/links.ts";
import { Link, navigate, useRoute } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useOperationChanges } from "../data/changes.ts";
import { useResource } from "../data/resource.ts";
import { Empty } from "../parts/empty.tsx";
import { type Choice, Select } from "../parts/field.tsx";
import { offsetOf, PAGE_ROWS, Pages } from "../parts/lists/pages.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { kindLabel, statusLabel } from "../parts/status-mark.tsx";
import { OperationTable } from "./table.tsx";

const STATUSES = [
  { value: "", label: "Any" },
  ...OPERATION_STATUSES.map((status) => ({ value: status, label: statusLabel({ status }).text })),
] as const;

const KINDS = [
  { value: "", label: "Any" },
  ...OPERATION_KINDS.map((kind) => ({ value: kind, label: kindLabel(kind) })),
] as const;

const TIMES = [
  { value: "", label: "Any time" },
  { value: "15m", label: "Last 15 minutes" },
  { value: "1h", label: "Last hour" },
  { value: "1d", label: "Last day" },
  { value: "7d", label: "Last 7 days" },
] as const;

/** The value of the choice that a link names; undefined when there is no such choice. */
function chosen<Value extends string>(
  choices: readonly Choice<Value>[],
  text: string | null,
): Exclude<Value, ""> | undefined {
  const choice = choices.find(({ value }) => value !== "" && value === text);
  return choice?.value as Exclude<Value, ""> | undefined;
}

/**
 * Operations of the account, newest first, with the filters and the page that the link names.
 * @param props `none`: shown when the account has no operation
 */
export function OperationList({ none }: { readonly none: ComponentChildren }) {
  const { path, parameters } = useRoute();
  const status = chosen(STATUSES, parameters.get("status"));
  const kind = chosen(KINDS, parameters.get("kind"));
  const since = chosen(TIMES, parameters.get("since"));
  const offset = offsetOf(parameters);
  const link = (change: Readonly<Record<string, string | number>>) => queryOf({ status, kind, since, ...change });
  // A new filter begins at the first page.
  const filter = (change: Readonly<Record<string, string>>) => navigate(link(change), { replace: true });
  const { value, problem, reload } = useResource(`operations${link({ from: offset })}`, (signal) =>
    answerOf(
      api.v1.operations.get({
        query: { about: true, limit: PAGE_ROWS + 1, offset, ...given({ status, kind, since }) },
        fetch: { signal },
      }),
    ),
  );
  useOperationChanges(reload);
  const rows = value?.slice(0, PAGE_ROWS);
  const isFiltered = link({}) !== "?";
  return (
    <>
      <search class="filters flex items-end wrap gap-3">
        <Select label="Status" value={status ?? ""} choices={STATUSES} onValue={(next) => filter({ status: next })} />
        <Select label="Kind" value={kind ?? ""} choices={KINDS} onValue={(next) => filter({ kind: next })} />
        <Select label="Started" value={since ?? ""} choices={TIMES} onValue={(next) => filter({ since: next })} />
        {isFiltered ? (
          <Link class="filters-clear inline-row" href={path}>
            Clear
          </Link>
        ) : null}
      </search>
      {problem === undefined ? null : (
        <ProblemNote title="The operations could not be read" problem={problem} onRetry={reload} />
      )}
      {rows === undefined && problem === undefined ? <Skeleton lines={8} label="Loading operations" /> : null}
      {rows?.length === 0 ? <NoRows isFiltered={isFiltered} isPastEnd={offset > 0} none={none} /> : null}
      {rows === undefined || rows.length === 0 ? null : <OperationTable label="Operations, newest first" rows={rows} />}
      {value === undefined ? null : <Pages offset={offset} count={value.length} link={(from) => link({ from })} />}
    </>
  );
}

interface NoRowsProps {
  readonly isFiltered: boolean;
  readonly isPastEnd: boolean;
  readonly none: ComponentChildren;
}

function NoRows({ isFiltered, isPastEnd, none }: NoRowsProps) {
  if (isPastEnd) return <Empty title="No older operations" />;
  if (isFiltered) return <Empty title="No matching operations" text="Change the filters, or clear them." />;
  return none;
}
