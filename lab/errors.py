"""The root of the lab's own errors.

    LabError                    wrong use of the lab, or something in it did not work; never an answer on the wire
        FaultSpecError          a fault that is not understood       lab/vpc/spec_reader.py
        FabricError             a namespace, link or packet          lab/fabric/errors.py
        NodeError               a node, or a program in it           lab/node/errors.py
            SandboxError        the container runtime refused        lab/node/errors.py
        ControlError            the background lab's socket          lab/cli/control.py

What the simulated EC2 refuses is an answer, not an error of the lab: lab/vpc/errors.py.
"""


class LabError(Exception):
    """Wrong use of the lab, or something that it should run did not work; the message is a sentence for its operator."""
