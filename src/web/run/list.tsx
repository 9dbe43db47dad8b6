import { answerOf } from "../../client/client.ts";
import { hasEnded } from "../../client/operations.ts";
import type { Operation, OperationsQuery } from "../../client/types.ts";
import { OPERATION_KINDS, OPERATION_STATUSES } from "../../domain/operation.ts";
import { queryOf } from "../app/links.ts";
import { Link, navigate, useRoute } from "../app/router.ts";
import { api } from "../data/api.ts";
import { useOperationChanges } from "../data/changes.ts";
import { useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Button, ButtonLink } from "../parts/button.tsx";
import { useSeconds } from "../parts/clock.ts";
import { Empty } from "../parts/empty.tsx";
import { Select } from "../parts/field.tsx";
import { Age, Duration } from "../parts/figure.tsx";
import { shortId } from "../parts/format.ts";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { KIND_LABELS, StatusMark, shownOf } from "../parts/status-mark.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { endOf, resultImage, tookMs } from "./words.ts";

/** Number of operations on a page. */
const PAGE_COUNT = 50;
const TIMES = [
  { value: "", label: "Any time" },
  { value: "1h", label: "Last hour" },
  { value: "1d", label: "Last day" },
  { value: "7d", label: "Last 7 days" },
];

/** Operations, the newest first, with the filters of the link. */
export function RunList() {
  const { parameters } = useRoute();
  const { may } = useSession();
  const filters = {
    status: chosen(parameters.get("status"), OPERATION_STATUSES),
    kind: chosen(parameters.get("kind"), OPERATION_KINDS),
    since: TIMES.find(({ value }) => value !== "" && value === parameters.get("since"))?.value,
  };
  const offset = Math.max(0, Number.parseInt(parameters.get("offset") ?? "0", 10) || 0);
  const query: OperationsQuery = { limit: PAGE_COUNT + 1, offset, about: true, ...given(filters) };
  const list = useResource(`operations ${JSON.stringify(query)}`, (signal) =>
    answerOf(api.v1.operations.get({ query, fetch: { signal } })),
  );
  useOperationChanges(list.reload);
  const rows = list.value?.slice(0, PAGE_COUNT) ?? [];
  const now = useSeconds(rows.some((operation) => !hasEnded(operation)));
  const go = (changed: Readonly<Record<string, string | number | undefined>>) =>
    navigate(`/runs${queryOf({ ...filters, ...changed })}`, { replace: true });
  const isFiltered = Object.values(filters).some((value) => value !== undefined);
  return (
    <div class="run-list">
      <PageHeader
        heading="Runs"
        actions={
          may("instances:spawn") ? (
            <ButtonLink href="/runs/new" tone="primary" icon="plus">
              New run
            </ButtonLink>
          ) : null
        }
      />
      <div class="run-filters">
        <Select
          label="Status"
          value={filters.status ?? ""}
          choices={[
            { value: "", label: "Any" },
            ...choicesOf(OPERATION_STATUSES, (status) => shownOf({ status }).text),
          ]}
          onValue={(status) => go({ status })}
        />
        <Select
          label="Kind"
          value={filters.kind ?? ""}
          choices={[{ value: "", label: "Any" }, ...choicesOf(OPERATION_KINDS, (kind) => KIND_LABELS[kind])]}
          onValue={(kind) => go({ kind })}
        />
        <Select label="Started" value={filters.since ?? ""} choices={TIMES} onValue={(since) => go({ since })} />
      </div>
      {list.problem === undefined ? null : (
        <ProblemNote problem={list.problem} title="The runs could not be listed" onRetry={list.reload} />
      )}
      {list.value === undefined && list.problem === undefined ? <Skeleton lines={8} label="Loading the runs" /> : null}
      {list.value !== undefined && rows.length === 0 ? (
        <Nothing isFiltered={isFiltered} isPastEnd={offset > 0} />
      ) : null}
      {rows.length === 0 ? null : <Table label="Runs" columns={columns(now)} rows={rows} rowKey={({ id }) => id} />}
      <nav class="run-pages" aria-label="Pages of runs">
        {offset === 0 ? null : (
          <Button icon="left" onClick={() => go({ offset: Math.max(0, offset - PAGE_COUNT) || undefined })}>
            Newer
          </Button>
        )}
        {(list.value?.length ?? 0) > PAGE_COUNT ? (
          <Button icon="right" onClick={() => go({ offset: offset + PAGE_COUNT })}>
            Older
          </Button>
        ) : null}
      </nav>
    </div>
  );
}

function Nothing({ isFiltered, isPastEnd }: { readonly isFiltered: boolean; readonly isPastEnd: boolean }) {
  const { may } = useSession();
  if (isFiltered || isPastEnd) {
    return (
      <Empty
        title={isFiltered ? "No matching runs" : "No older runs"}
        text={isFiltered ? "Change the filters, or clear them." : undefined}
        action={<ButtonLink href="/runs">Show all runs</ButtonLink>}
      />
    );
  }
  return (
    <Empty
      title="No runs yet"
      text="A run executes a command in a sandbox with the files of an image. Its result is a new image."
      command="coppice run --image tag:busybox -- uname -a"
      action={
        may("instances:spawn") ? (
          <ButtonLink href="/runs/new" icon="run">
            New run
          </ButtonLink>
        ) : null
      }
    />
  );
}

function columns(now: number): Column<Operation>[] {
  return [
    {
      id: "status",
      label: "Status",
      cell: (operation) => <StatusMark status={operation.status} {...endOf(operation)} />,
    },
    {
      ...{ id: "command", label: "Command", isHeading: true, isWide: true },
      cell: (operation) => (
        <Link class="run-list-what" href={`/runs/${operation.id}`}>
          <GuestText
            text={operation.about ?? `${KIND_LABELS[operation.kind]} ${shortId(operation.id)}`}
            isMono
            hasTitle
          />
        </Link>
      ),
    },
    { id: "kind", label: "Kind", cell: ({ kind }) => KIND_LABELS[kind] },
    { id: "from", label: "From", cell: ({ image }) => (image === undefined ? "–" : <ImageLink id={image} />) },
    {
      ...{ id: "result", label: "Result" },
      cell: (operation) => {
        const image = resultImage(operation);
        return image === undefined ? "–" : <ImageLink id={image} />;
      },
    },
    {
      id: "duration",
      label: "Duration",
      isFigure: true,
      cell: (operation) => <Duration value={tookMs(operation, now)} />,
    },
    { id: "started", label: "Started", isFigure: true, cell: ({ created_at: at }) => <Age at={at} /> },
  ];
}

export function ImageLink({ id, tag }: { readonly id: string; readonly tag?: string | undefined }) {
  return (
    <Link href={`/images/${id}`} title={id}>
      {tag === undefined ? <span class="mono">{shortId(id)}</span> : <GuestText text={tag} />}
    </Link>
  );
}

function chosen<Value extends string>(text: string | null, values: readonly Value[]): Value | undefined {
  return values.find((value) => value === text);
}

function choicesOf<Value extends string>(values: readonly Value[], labelOf: (value: Value) => string) {
  return values.map((value) => ({ value: value as string, label: labelOf(value) }));
}

function given<T extends object>(values: T): { [Key in keyof T]?: Exclude<T[Key], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as {
    [Key in keyof T]?: Exclude<T[Key], undefined>;
  };
}
