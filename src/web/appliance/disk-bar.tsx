import type { Space } from "../../client/types.ts";
import { Bytes } from "../parts/figure.tsx";
import { Icon } from "../parts/icon.tsx";
import { bytesText, countOf } from "../text/format.ts";

interface Piece {
  readonly id: string;
  readonly label: string;
  readonly bytes: number;
  readonly note?: string;
}

/** The disk of the data directory as one bar, with what it has in figures. */
export function DiskBar({ disk, stored }: Pick<Space, "disk" | "stored">) {
  const pieces = piecesOf({ disk, stored });
  const { total_bytes: total, free_bytes: free, reserve_bytes: reserve } = disk;
  const isFull = free < reserve;
  return (
    <>
      <div class="appliance-bar flex appliance-bar-large" aria-hidden="true">
        {pieces
          .filter(({ bytes }) => bytes > 0)
          .map(({ id, bytes }) => (
            <span
              key={id}
              class={`appliance-bar-part appliance-bar-${id}`}
              style={{ width: `${(bytes / total) * 100}%` }}
            />
          ))}
      </div>
      <dl class="appliance-legend">
        {pieces.map(({ id, label, bytes, note }) => (
          <div key={id}>
            <dt class="row gap-2 muted small">
              <span class={`appliance-swatch appliance-bar-${id}`} aria-hidden="true" />
              {label}
            </dt>
            <dd class="medium">
              <Bytes value={bytes} />
              {note === undefined ? null : <span class="muted small block">{note}</span>}
            </dd>
          </div>
        ))}
      </dl>
      <p class={isFull ? "appliance-warning prose warning flex items-start gap-2" : "muted"}>
        {isFull ? <Icon name="warning" /> : null}
        {isFull
          ? `Less than ${bytesText(reserve)} is free: no new work is accepted, and the run that writes most is ended.`
          : `No new work is accepted when less than ${bytesText(reserve)} is free.`}
      </p>
      {disk.files === undefined || disk.files.free >= disk.files.reserve ? null : (
        <p class="appliance-warning prose warning flex items-start gap-2">
          <Icon name="warning" />
          The file system has almost no room for more files (inodes): no new work is accepted.
        </p>
      )}
    </>
  );
}

function piecesOf({ disk, stored }: Pick<Space, "disk" | "stored">): readonly Piece[] {
  const ours = stored.layer_bytes + stored.merged_layer_bytes + stored.file_bytes;
  const others = Math.max(0, disk.total_bytes - disk.free_bytes - ours);
  const layers = `of ${countOf(stored.images, "image")}`;
  return [
    { id: "layers", label: countOf(stored.layers, "layer"), bytes: stored.layer_bytes, note: layers },
    {
      id: "merged",
      label: countOf(stored.merged_layers, "merged layer"),
      bytes: stored.merged_layer_bytes,
      note: "a cache for long chains",
    },
    { id: "files", label: countOf(stored.files, "file"), bytes: stored.file_bytes, note: "uploaded" },
    { id: "others", label: "Everything else", bytes: others, note: "on the same file system" },
    { id: "free", label: "Free", bytes: disk.free_bytes, note: `of ${bytesText(disk.total_bytes)}` },
  ];
}
