import { useState } from "preact/hooks";
import { answerOf } from "../../client/client.ts";
import { isTag, TAG_RULE } from "../../domain/image.ts";
import { api } from "../data/api.ts";
import { useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { Empty } from "../parts/empty.tsx";
import { Field } from "../parts/field.tsx";
import { useToast } from "../parts/toast.tsx";

const EXAMPLE = "registry.example.net/library/debian:13";

/** Asks for an image of a registry, and starts its import. */
export function ImportDialog({ onClose }: { readonly onClose: () => void }) {
  const [reference, setReference] = useState("");
  const [tag, setTag] = useState("");
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const toast = useToast();
  const isWrong = tag !== "" && !isTag(tag);
  const begin = async () => {
    const credentials = username === "" && password === "" ? {} : { credentials: { username, password } };
    const named = tag === "" ? {} : { tag };
    await answerOf(api.v1.images.import.post({ registry: reference.trim(), ...named, ...credentials }));
    toast("Import started");
  };
  return (
    <Confirm
      title="Import an image"
      action="Import"
      isReady={reference.trim() !== "" && !isWrong}
      onConfirm={begin}
      onClose={onClose}
    >
      <div class="branches-form stack gap-4">
        <Field
          label="Reference"
          value={reference}
          onValue={setReference}
          isMono
          placeholder={EXAMPLE}
          hint="Registry, repository, and tag or digest."
        />
        <Field
          label="Tag"
          value={tag}
          onValue={setTag}
          isMono
          problem={isWrong ? `A tag ${TAG_RULE}.` : undefined}
          hint="A name for the image. Optional."
        />
        <details>
          <summary>The registry needs a password</summary>
          <div class="branches-form stack gap-4">
            <Field label="User name" value={username} onValue={setUsername} />
            <Field
              label="Password"
              type="password"
              value={password}
              onValue={setPassword}
              hint="Used for this import only, and not stored."
            />
          </div>
        </details>
      </div>
    </Confirm>
  );
}

/** Shown on a new appliance: how to import the first image. */
export function NoImages({ onImport }: { readonly onImport: () => void }) {
  const { may } = useSession();
  return (
    <Empty
      title="No images yet"
      text="Import an image from a registry. Each run in it makes a new image, which branches off it here."
      command={`coppice image import ${EXAMPLE} --tag debian`}
      action={
        may("images:import") ? (
          <Button tone="primary" icon="download" onClick={onImport}>
            Import an image
          </Button>
        ) : undefined
      }
    />
  );
}
