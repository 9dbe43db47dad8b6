import { hasEnded } from "../../client/operations.ts";
import type { Operation } from "../../client/types.ts";
import { useSeconds } from "../browser/clock.ts";
import { Link } from "../browser/router.ts";
import { Age, Duration } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { kindLabel, StatusMark } from "../parts/status-mark.tsx";
import { shortId } from "../text/format.ts";
import { ImageLink } from "./image-link.tsx";
import { endOf, resultImage, tookMs } from "./outcome.ts";

const columnsAt = (now: number): readonly Column<Operation>[] => [
  {
    id: "status",
    label: "Status",
    cell: (operation) => <StatusMark status={operation.status} {...endOf(operation)} />,
  },
  {
    id: "command",
    label: "Command",
    isHeading: true,
    isWide: true,
    cell: (operation) => <Command {...operation} />,
  },
  { id: "kind", label: "Kind", cell: ({ kind }) => kindLabel(kind) },
  { id: "from", label: "From", cell: ({ image }) => imageCell(image) },
  { id: "result", label: "Result", cell: (operation) => imageCell(resultImage(operation)) },
  {
    id: "duration",
    label: "Duration",
    isFigure: true,
    cell: (operation) => <Duration value={tookMs(operation, now)} />,
  },
  { id: "started", label: "Started", isFigure: true, cell: ({ created_at }) => <Age at={created_at} /> },
];

/** Operations as a table. */
export function OperationTable({ label, rows }: { readonly label: string; readonly rows: readonly Operation[] }) {
  const now = useSeconds(rows.some((operation) => !hasEnded(operation)));
  return <Table label={label} columns={columnsAt(now)} rows={rows} rowKey={({ id }) => id} />;
}

const imageCell = (id: string | undefined) => (id === undefined ? "–" : <ImageLink id={id} />);

function Command({ id, kind, about, status, error }: Operation) {
  return (
    <div class="ellipsis">
      <Link href={`/runs/${id}`}>
        <GuestText text={about ?? `${kindLabel(kind)} ${shortId(id)}`} isMono hasTitle />
      </Link>
      {status !== "FAILED" || error === undefined ? null : (
        <div class="muted small">
          <GuestText text={error.message} hasTitle />
        </div>
      )}
    </div>
  );
}
