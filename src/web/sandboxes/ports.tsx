import { useState } from "preact/hooks";
import { changeSandbox, linkToPort } from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy-button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Checkbox, Field } from "../parts/field.tsx";
import { Age } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { addressOfPort, portOf } from "./model/ports.ts";

interface PortsProps {
  readonly sandbox: Sandbox;
  readonly onChange: () => void;
}

/** An address of a port; a link expires. */
interface PortLink {
  readonly port: number;
  readonly url: string;
  readonly expiresAt: string | null;
}

/** The ports of a sandbox: a link to one, and those that need no link. */
export function PortsPanel({ sandbox, onChange }: PortsProps) {
  const [text, setText] = useState("8080");
  const [link, setLink] = useState<PortLink | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const port = portOf(text);
  const attempt = async (work: () => Promise<void>) => {
    setBusy(true);
    setProblem(undefined);
    try {
      await work();
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  if (sandbox.urls === undefined) {
    return (
      <Empty
        title="Ports are not served from outside"
        text="The operator turns them on by ingress.listen. A port can be forwarded to your machine without that."
        command={`coppice forward ${sandbox.name} 8080:8080`}
      />
    );
  }
  const make = async (number: number) => {
    const { url, expires_at: expiresAt } = await linkToPort(api, sandbox.uuid, { port: number });
    setLink({ port: number, url, expiresAt });
  };
  return (
    <section class="stack gap-4 shrink" aria-label="Ports">
      <form
        class="flex wrap items-end gap-2-3"
        onSubmit={(event) => {
          event.preventDefault();
          if (port !== null && !isBusy) void attempt(() => make(port));
        }}
      >
        <Field
          label="Port"
          inputMode="numeric"
          isMono
          value={text}
          onValue={setText}
          problem={port === null ? "a port is a number from 1 to 65535" : undefined}
        />
        <Button type="submit" icon="link" isBusy={isBusy} disabled={port === null}>
          Make a link
        </Button>
      </form>
      {problem === undefined ? null : <ProblemNote problem={problem} />}
      {link === null ? null : <LinkLine link={link} />}
      <PublicPorts sandbox={sandbox} port={port} onChange={onChange} attempt={attempt} />
    </section>
  );
}

/** An address that opens in another tab: it is of another origin than this page. */
function LinkLine({ link }: { readonly link: PortLink }) {
  const address = addressOfPort(link.url);
  if (address === null) return null;
  return (
    <p class="row wrap gap-1-3 anywhere">
      <span class="medium">Port {link.port}</span>
      <a href={address} target="_blank" rel="noopener noreferrer">
        Open in another tab
      </a>
      <CopyButton text={address} label={`Copy the link to port ${link.port}`} />
      {link.expiresAt === null ? null : (
        <span class="muted">
          expires <Age at={link.expiresAt} />; until then, the link alone opens the port
        </span>
      )}
    </p>
  );
}

interface PublicProps extends PortsProps {
  readonly port: number | null;
  readonly attempt: (work: () => Promise<void>) => Promise<void>;
}

function PublicPorts({ sandbox, port, onChange, attempt }: PublicProps) {
  const { may } = useSession();
  const { public_ports: ports, uuid, urls } = sandbox;
  const isPublic = port !== null && ports.includes(port);
  const set = (next: number[]) =>
    attempt(async () => {
      await changeSandbox(api, uuid, { public_ports: next });
      onChange();
    });
  return (
    <>
      {port === null ? null : (
        <Checkbox
          label={`Port ${port} is public`}
          hint={
            may("instances:ingress")
              ? "Anyone who knows its address reaches it without a link."
              : "The token of this session lacks the scope instances:ingress."
          }
          isChecked={isPublic}
          disabled={!may("instances:ingress")}
          onChecked={(isOn) => void set(isOn ? [...ports, port] : ports.filter((other) => other !== port))}
        />
      )}
      {ports.length === 0 ? null : (
        <ul class="stack gap-2" aria-label="Public ports">
          {ports.map((number) => (
            <li key={number}>
              <LinkLine
                link={{ port: number, url: (urls?.pattern ?? "").replace("{port}", String(number)), expiresAt: null }}
              />
            </li>
          ))}
        </ul>
      )}
      <p class="muted small anywhere">
        Addresses: <GuestText text={urls?.pattern ?? ""} isMono />
      </p>
    </>
  );
}
