import { sandboxPage } from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { SANDBOX_STATES } from "../../domain/sandbox.ts";
import { useSeconds } from "../browser/clock.ts";
import { queryOf } from "../browser/links.ts";
import { Link, navigate, useRoute } from "../browser/router.ts";
import { useInterval } from "../browser/use-interval.ts";
import { api } from "../data/api.ts";
import { useOperationChanges } from "../data/changes.ts";
import { useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { ImageLink } from "../operations/image-link.tsx";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { ButtonLink } from "../parts/button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Select } from "../parts/field.tsx";
import { Age, Duration } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { PAGE_ROWS } from "../parts/lists/pages.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { Menu } from "../parts/menu.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { LabelMark } from "../parts/status-mark.tsx";
import { printable } from "../text/printable.ts";
import { type Asking, Question, useAsking } from "./actions/questions.tsx";
import { leftMs } from "./model/life.ts";
import { isPassing, STATE_LABELS } from "./model/states.ts";

const STATES = [
  { value: "", label: "Not ended" },
  ...SANDBOX_STATES.map((state) => ({ value: state, label: STATE_LABELS[state].text })),
] as const;

/** Time between two readings of the list, in `milliseconds`: no event reports changes without an operation. */
const READ_MS = 5_000;
/** The same while a sandbox is about to change its state. */
const READ_SOON_MS = 1_000;

/** The sandboxes of the account, newest first, with the filter and the page that the link names. */
export function SandboxList() {
  const { parameters } = useRoute();
  const { may } = useSession();
  const state = SANDBOX_STATES.find((name) => name === parameters.get("state"));
  const cursor = parameters.get("after") ?? undefined;
  const { value, problem, reload } = useResource(`sandboxes${queryOf({ state, cursor })}`, (signal) =>
    sandboxPage(api, { limit: PAGE_ROWS, signal, ...given({ state, cursor }) }),
  );
  useOperationChanges(reload);
  useInterval(value?.sandboxes.some((sandbox) => isPassing(sandbox.state)) === true ? READ_SOON_MS : READ_MS, reload);
  const asking = useAsking(reload);
  const rows = value?.sandboxes ?? [];
  return (
    <>
      <PageHeader heading="Sandboxes" actions={may("instances:spawn") ? <OpenLink isPrimary /> : null} />
      <search class="filters flex items-end wrap gap-3">
        <Select
          label="State"
          value={state ?? ""}
          choices={STATES}
          onValue={(next) => navigate(queryOf({ state: next }), { replace: true })}
        />
      </search>
      {problem === undefined ? null : (
        <ProblemNote title="The sandboxes could not be read" problem={problem} onRetry={reload} />
      )}
      {value === undefined && problem === undefined ? <Skeleton lines={6} label="Loading sandboxes" /> : null}
      {value === undefined || rows.length > 0 ? null : (
        <None isFiltered={state !== undefined || cursor !== undefined} />
      )}
      {rows.length === 0 ? null : <Rows rows={rows} asking={asking} />}
      {cursor === undefined && (value?.next ?? null) === null ? null : (
        <nav class="pages row gap-3" aria-label="Pages">
          {cursor === undefined ? null : (
            <ButtonLink icon="left" href={queryOf({ state })}>
              Newest
            </ButtonLink>
          )}
          {value === undefined || value.next === null ? null : (
            <ButtonLink icon="right" href={queryOf({ state, after: value.next })}>
              Older
            </ButtonLink>
          )}
        </nav>
      )}
      <Question asking={asking} />
    </>
  );
}

function OpenLink({ isPrimary }: { readonly isPrimary?: boolean }) {
  return (
    <ButtonLink href="/sandboxes/new" icon="plus" tone={isPrimary === true ? "primary" : "plain"}>
      Open a sandbox
    </ButtonLink>
  );
}

function None({ isFiltered }: { readonly isFiltered: boolean }) {
  const { may } = useSession();
  if (isFiltered) return <Empty title="No matching sandboxes" text="Choose another state." />;
  return (
    <Empty
      title="No sandboxes yet"
      text="A sandbox is a machine that stays: run commands in it, edit its files, pause it, and roll it back."
      command="coppice up tag:busybox --name dev"
      action={may("instances:spawn") ? <OpenLink /> : null}
    />
  );
}

function Rows({ rows, asking }: { readonly rows: readonly Sandbox[]; readonly asking: Asking }) {
  const now = useSeconds(rows.some(({ ends_at: endsAt }) => endsAt !== null));
  const columns: readonly Column<Sandbox>[] = [
    {
      id: "name",
      label: "Name",
      isHeading: true,
      isWide: true,
      cell: ({ uuid, name }) => (
        <Link href={`/sandboxes/${uuid}`}>
          <GuestText text={name} isMono hasTitle />
        </Link>
      ),
    },
    { id: "state", label: "State", cell: ({ state }) => <LabelMark label={STATE_LABELS[state]} /> },
    { id: "head", label: "Head", cell: ({ head }) => (head === null ? "–" : <ImageLink id={head} />) },
    { id: "age", label: "Opened", isFigure: true, cell: ({ created_at: at }) => <Age at={at} /> },
    { id: "left", label: "Time left", isFigure: true, cell: (sandbox) => <Duration value={leftMs(sandbox, now)} /> },
    {
      id: "actions",
      label: "Actions",
      isLabelHidden: true,
      cell: (sandbox) => (
        <Menu label={`Actions on ${printable(sandbox.name)}`} isSmall items={asking.itemsFor(sandbox)} />
      ),
    },
  ];
  return <Table label="Sandboxes, newest first" columns={columns} rows={rows} rowKey={({ uuid }) => uuid} />;
}
