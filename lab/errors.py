"""The root of the lab's own errors.

    LabError                    wrong use of the lab, or a part of the lab failed; never an answer on the wire
        FaultSpecError          a fault that is not understood       lab/vpc/spec_reader.py
        FabricError             a namespace, link or packet          lab/fabric/errors.py
        NodeError               a node, or a program in it           lab/node/errors.py
            SandboxError        the container runtime refused        lab/node/errors.py
        ControlError            the background lab's socket          lab/cli/control.py

A refusal by the simulated EC2 is an answer and no error of the lab; lab/vpc/errors.py has the refusals.
"""


class LabError(Exception):
    """Wrong use of the lab, or a program or object of the lab failed. The message is a sentence for the person who runs the lab."""
