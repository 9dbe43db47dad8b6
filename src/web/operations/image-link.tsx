import { Link } from "../app/router.ts";
import { shortId } from "../parts/format.ts";
import { GuestText } from "../parts/guest-text.tsx";

/** A link to an image: its tag, or the end of its id. */
export function ImageLink({ id, tag }: { readonly id: string; readonly tag?: string | undefined }) {
  return (
    <Link href={`/images/${id}`} title={id}>
      {tag === undefined ? <span class="mono">{shortId(id)}</span> : <GuestText text={tag} />}
    </Link>
  );
}
